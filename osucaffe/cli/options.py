"""Owns the objects made from options that several commands share: readers, backends, weights."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING, Any

from .. import loading, proto
from ..backends.cores import usable_cores
from ..backends.cpu import Cpu
from ..data.ahead.parallel_map import BadRecords
from ..data.config import DataConfig
from ..data.pictures.preprocessing import find_preprocessing
from ..data.resident.sharded import Neighbours
from ..errors import UserError, listed, naming
from ..loading import NOT_STRICT, Model
from ..net import Net
from .launch.start import check_device

if TYPE_CHECKING:
    from ..backends.cuda import Cuda

logger = logging.getLogger("osucaffe")
BUCKET_MB = 16.0
_AUTO = "auto"


def tunes_bucket(args: argparse.Namespace) -> bool:
    """Whether the best bucket size is to be found by tuning."""
    return bool(args.bucket_mb == _AUTO)


def bucket_nbytes(args: argparse.Namespace) -> int:
    """The requested bucket size; with tuning, the one to begin with."""
    return int((BUCKET_MB if tunes_bucket(args) else args.bucket_mb) * 2**20)


def data_config(
    args: argparse.Namespace, sharers: int, neighbours: Neighbours | None = None
) -> DataConfig:
    """The data settings from the options, for one of `sharers` processes of this host;
    neighbours: those of them that train with this one."""
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
    """The number of reading threads from --readers."""
    return args.readers or usable_cores()


def bad_records(args: argparse.Namespace) -> BadRecords:
    """The handling of bad records by --on_bad_record."""
    hint = "; --on_bad_record skip goes on without it"
    return BadRecords(skip=args.on_bad_record == "skip", hint=hint)


_BY_DEFAULT = {
    "tf32": "Computing in tf32, as PyTorch's convolutions do: --precision bf16 is often 1.5 to 2 "
    "times as fast, --precision fp32 exact and slower",
    "fp32": "Computing in fp32: --precision fp16 is faster",
}


def make_backend(args: argparse.Namespace) -> Cpu | Cuda:
    """The backend selected by --gpu and related options."""
    check_device(args)
    if args.gpu is not None:
        if not args.gpu.isdecimal():
            raise UserError(f"--gpu {args.gpu}: give the number of one GPU, such as 0")
        from ..backends.cuda import Cuda

        backend = Cuda(int(args.gpu), args.precision, graphs=not args.no_graph)
        if args.precision is None:
            logger.info("%s", _BY_DEFAULT[backend.precision])
        return backend

    if (args.threads or 0) > (cores := usable_cores()):
        logger.warning(
            "--threads %d: more than the %d cores that this process may use; this is slow",
            *(args.threads, cores),
        )
    return Cpu(threads=args.threads)


def check_fed(net: Net, file: str) -> None:
    """UserError for a net with inputs that nothing fills."""
    if net.inputs:
        names = listed(f'"{name}"' for name in net.inputs)
        raise UserError(
            f"{file}: nothing fills its input {names}: give a net with a data layer, such as a "
            "train_val.prototxt (deploy nets are for classify and pycaffe)"
        )


def read_weights(files: str | list[str]) -> list[Model]:
    """Read model files before a net is built, to report errors in them early."""
    named = [files] if isinstance(files, str) else files
    return [(file, proto.read_weights(file)) for file in named]


def load_net(
    args: argparse.Namespace,
    *,
    reads: bool,
    param: proto.NetParameter | None = None,
    **settings: Any,
) -> Net:
    """The net of --model with the weights of --weights, on the backend of the options.

    reads: it must have data layers. param: what the file says, if it has been read. settings: those
    of Net. UserError.
    """
    models = read_weights(args.weights)
    backend = make_backend(args)
    with naming(args.model):
        param = proto.read_net(args.model) if param is None else param
        net = Net(param, backend=backend, level=args.level, stages=args.stage, **settings)
    if reads:
        check_fed(net, args.model)
        compare_preprocessing(net, args.model, models)
    load_weights(net, models, args)
    return net


def compare_preprocessing(net: Net, file: str, models: list[Model]) -> None:
    """Warn if a net scales its images differently, or subtracts another mean, than its models'
    training did. (The net's own prototxt counts, as in Caffe.)"""
    settings = find_preprocessing(net.param, file)
    for name, weights in models:
        trained = find_preprocessing(weights, name)
        if settings and trained and not settings.is_like(trained):
            logger.warning(
                "%s: images are preprocessed with %s, but in training with %s (%s): "
                "results will differ",
                *(settings.origin, settings, trained, trained.origin),
            )


def load_weights(net: Net, models: list[Model], args: argparse.Namespace) -> None:
    """Copy the weights of layers with the same names, one file after the other, and free each.
    UserError if nothing matches, and with --strict if anything does not."""
    mismatch = loading.load_weights([net], models) if models else ""
    if mismatch and args.strict:
        raise UserError(f"{mismatch}: {NOT_STRICT}")
