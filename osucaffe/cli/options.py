"""Owns the options that several subcommands share, and what they turn into."""

from __future__ import annotations

import argparse
import logging
import math
from typing import TYPE_CHECKING

from ..errors import UserError, listed

if TYPE_CHECKING:
    from ..backends.cpu import Cpu
    from ..backends.cuda import Cuda
    from ..data.ahead.parallel_map import BadRecords
    from ..data.config import DataConfig
    from ..data.resident.sharded import Neighbours
    from ..loading import Model
    from ..net import Net

logger = logging.getLogger("osucaffe")
_LARGEST = 2**31 - 1


def positive(text: str) -> int:
    """A whole number of at least 1, which fits a field of a settings file."""
    return _within(int(text), 1)


def level(text: str) -> int:
    """A whole number that fits a field of a settings file."""
    return _within(int(text), -_LARGEST)


def _within(value: int, least: int) -> int:
    if value < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, not {value}")
    if value > _LARGEST:
        raise argparse.ArgumentTypeError(f"must be at most {_LARGEST}, not {value}")
    return value


def threads(text: str) -> int:
    """A number of threads that oneDNN survives: of a million it dies."""
    if (value := positive(text)) > 1024:
        raise argparse.ArgumentTypeError(f"must be at most 1024, not {value}")
    return value


def extent(text: str) -> int:
    """A whole number of pixels, or 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, not {value}")
    return value


def not_negative(text: str) -> float:
    """A finite number of at least 0."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be at least 0, and finite, not {text}")
    return value


# argparse names them in its messages.
positive.__name__ = level.__name__ = extent.__name__ = "whole number"
not_negative.__name__ = "number"


def names(text: str) -> list[str]:
    """The parts of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def stages(text: str) -> list[str]:
    """Names that a net may have: text, not any bytes."""
    if not text.isprintable():
        raise argparse.ArgumentTypeError("has letters that no name has")
    return names(text)


def files(text: str) -> list[str]:
    """A list with commas that names at least one file."""
    if not (found := names(text)):
        raise argparse.ArgumentTypeError("names no file")
    return found


def add_device(parser: argparse.ArgumentParser, gpu: str = "the number of the GPU") -> None:
    """Add --gpu, --precision, --no-graph and --threads. gpu: what --gpu may be given."""
    group = parser.add_argument_group("where it runs")
    group.add_argument("--gpu", metavar="ID", help=f"{gpu} (default: the CPU)")
    group.add_argument(
        "--precision",
        choices=("fp32", "tf32", "bf16", "fp16"),
        help="what the GPU computes in (default: tf32 from Ampere on, fp32 before); "
        "parameters stay in fp32",
    )
    group.add_argument(
        "--no_graph",
        action="store_true",
        help="launch the GPU's kernels one by one, not as CUDA graphs (for debugging)",
    )
    group.add_argument(
        "--threads", metavar="N", type=threads, help="CPU threads (default: one per core)"
    )


def add_loss_scale(parser: argparse.ArgumentParser) -> None:
    """Add --loss_scale."""
    parser.add_argument(
        "--loss_scale",
        metavar="SCALE",
        help='loss scaling: "dynamic", "none" or a factor (default: dynamic in fp16, else none)',
    )


def add_state(parser: argparse.ArgumentParser) -> None:
    """Add --level and --stage."""
    group = parser.add_argument_group("which layers of the net")
    group.add_argument(
        "--level", metavar="N", type=level, default=0, help="the net's level (default: 0)"
    )
    group.add_argument(
        "--stage",
        metavar="NAMES",
        type=stages,
        default=[],
        help="the net's stages, separated by commas",
    )


def add_log(parser: argparse.ArgumentParser) -> None:
    """Add --log_dir."""
    parser.add_argument("--log_dir", metavar="DIR", help="also write the log to a new file in DIR")


def add_weights(parser: argparse._ActionsContainer, help: str) -> None:
    """Add --weights."""
    parser.add_argument("--weights", metavar="FILES", type=files, default=[], help=help)


def add_strict(parser: argparse.ArgumentParser) -> None:
    """Add --strict."""
    parser.add_argument(
        "--strict",
        action="store_true",
        help="stop if a layer is missing from the weights file, or the other way round",
    )


def add_readers(parser: argparse.ArgumentParser) -> None:
    """Add --readers."""
    parser.add_argument(
        "--readers",
        metavar="N",
        type=positive,
        help="threads that read data; more than 4 readers of compressed images are processes "
        "(default: at most one per core)",
    )


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add --readers and --on_bad_record."""
    add_readers(parser)
    parser.add_argument(
        "--on_bad_record",
        choices=("stop", "skip"),
        default="stop",
        help="on an image that cannot be read: stop (the default), or name it, count it and go on "
        "without it",
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add --readers, --on_bad_record, --shuffle, --decode and --cache."""
    add_reading(parser)
    parser.add_argument(
        "--shuffle",
        metavar="BLOCK",
        nargs="?",
        type=positive,
        const=256,
        help="read the LMDB in a new order each epoch, in blocks of BLOCK records (default: 256)",
    )
    parser.add_argument(
        "--decode",
        choices=("auto", "host", "gpu"),
        default="auto",
        help="what decodes JPEGs in an LMDB that are read anew in each epoch: the CPU (host); the "
        "GPU (gpu); or what is faster (auto, the default): the JPEG engines of a single GPU, if it "
        "has any, as an H100 or H200 does, for images from 200x200 on; else the CPU",
    )
    parser.add_argument(
        "--cache",
        choices=("auto", "device", "host", "none"),
        default="auto",
        help="where records are kept after the first read: on the GPU, divided among the GPUs of a "
        "host if they don't fit on each (device); decoded in host memory (host); or nowhere "
        "(none). The default, auto, keeps them on the GPU if they fit, else keeps compressed "
        "images decoded in host memory if they fit there",
    )


def data_config(
    args: argparse.Namespace, sharers: int, neighbours: Neighbours | None = None
) -> DataConfig:
    """How to read data, as add_data's options say, for one of so many processes of this host;
    neighbours: those of them that train with this one."""
    from ..data.config import DataConfig

    return DataConfig(
        readers=args.readers,
        skip_bad=args.on_bad_record == "skip",
        shuffle=args.shuffle or 0,
        decode=args.decode,
        cache=args.cache,
        sharers=max(1, sharers),
        neighbours=neighbours,
    )


def readers(args: argparse.Namespace) -> int:
    """The number of reading threads that --readers asks for."""
    from ..backends.cores import usable_cores

    return args.readers or usable_cores()


def bad_records(args: argparse.Namespace) -> BadRecords:
    """What --on_bad_record asks for."""
    from ..data.ahead.parallel_map import BadRecords

    return BadRecords(skip=args.on_bad_record == "skip")


def check_device(args: argparse.Namespace) -> None:
    """UserError for an option of GPUs without --gpu."""
    for option in ("precision", "no_graph"):
        if args.gpu is None and getattr(args, option):
            raise UserError(f"--{option} is for GPUs only: add --gpu 0")
    if args.gpu is None and getattr(args, "decode", "host") == "gpu":
        raise UserError("--decode gpu is for GPUs only: add --gpu 0")


def start_device(args: argparse.Namespace) -> None:
    """Begin to start the GPU that this process, if it is the only one, will use."""
    from ..comm.job.job import launched_by

    if args.gpu is not None and args.gpu.isdecimal() and not launched_by():
        from ..backends.cuda.runtime.startup import begin

        begin(int(args.gpu))


_BY_DEFAULT = {
    "tf32": "Computing in tf32, as PyTorch's convolutions do: --precision bf16 is often 1.5 to 2 "
    "times as fast, --precision fp32 exact and slower",
    "fp32": "Computing in fp32: --precision fp16 is faster",
}


def make_backend(args: argparse.Namespace) -> Cpu | Cuda:
    """The backend that --gpu and the options beside it ask for."""
    check_device(args)
    if args.gpu is not None:
        if not args.gpu.isdecimal():
            raise UserError(f"--gpu {args.gpu}: give the number of one GPU, such as 0")
        from ..backends.cuda import Cuda

        backend = Cuda(int(args.gpu), args.precision, graphs=not args.no_graph)
        if args.precision is None:
            logger.info("%s", _BY_DEFAULT[backend.precision])
        return backend
    from ..backends.cores import usable_cores
    from ..backends.cpu import Cpu

    if (args.threads or 0) > (cores := usable_cores()):
        logger.warning(
            "--threads %d: more than the %d cores that this process may use; this is slow",
            args.threads,
            cores,
        )
    return Cpu(threads=args.threads)


def check_fed(net: Net, file: str) -> None:
    """UserError for a net whose inputs nothing would fill."""
    if net.inputs:
        names = listed(f'"{name}"' for name in net.inputs)
        raise UserError(
            f"{file}: nothing fills its input {names}: give a net with a data layer, such as a "
            "train_val.prototxt (deploy nets are for classify and pycaffe)"
        )


def read_weights(files: list[str]) -> list[Model]:
    """Read model files, before a net is built: what is wrong with them is told at once."""
    from .. import proto

    return [(file, proto.read_weights(file)) for file in files]


def compare_preprocessing(net: Net, file: str, models: list[Model]) -> None:
    """Warn where a net scales its images otherwise, or subtracts another mean, than that which the
    models were trained with. (The net's own prototxt counts, as in Caffe.)"""
    from ..data.pictures.preprocessing import find_preprocessing

    own = find_preprocessing(net.param, file)
    for name, weights in models:
        trained = find_preprocessing(weights, name)
        if own and trained and not own.is_like(trained):
            logger.warning(
                "%s: images are preprocessed with %s, but in training with %s (%s): "
                "results will differ",
                own.origin,
                own,
                trained,
                trained.origin,
            )


def load_weights(net: Net, models: list[Model], args: argparse.Namespace) -> None:
    """Copy the weights of layers with the same names, one file after the other, and let go of
    each. UserError where nothing matches, and with --strict where anything does not."""
    from .. import loading

    check_strict(loading.load_weights([net], models) if models else "", args)


def check_strict(mismatch: str, args: argparse.Namespace) -> None:
    """UserError with --strict for what weights did not match."""
    from ..loading import NOT_STRICT

    if mismatch and args.strict:
        raise UserError(f"{mismatch}: {NOT_STRICT}")
