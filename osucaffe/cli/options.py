"""Owns what the options that several commands share turn into: readers, backends, weights."""

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
    """Whether the best size of buckets is to be found."""
    return bool(args.bucket_mb == _AUTO)


def bucket_nbytes(args: argparse.Namespace) -> int:
    """The size of buckets that is asked for; where it is to be found, what to begin with."""
    return int((BUCKET_MB if tunes_bucket(args) else args.bucket_mb) * 2**20)


def data_config(
    args: argparse.Namespace, sharers: int, neighbours: Neighbours | None = None
) -> DataConfig:
    """How to read data, as the options say, for one of so many processes of this host;
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
    """The number of reading threads that --readers asks for."""
    return args.readers or usable_cores()


def bad_records(args: argparse.Namespace) -> BadRecords:
    """What --on_bad_record asks for."""
    return BadRecords(skip=args.on_bad_record == "skip")


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

    if (args.threads or 0) > (cores := usable_cores()):
        logger.warning(
            "--threads %d: more than the %d cores that this process may use; this is slow",
            *(args.threads, cores),
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


def read_weights(files: str | list[str]) -> list[Model]:
    """Read model files, before a net is built: what is wrong with them is told at once."""
    named = [files] if isinstance(files, str) else files
    return [(file, proto.read_weights(file)) for file in named]


def load_net(args: argparse.Namespace, *, reads: bool, **settings: Any) -> Net:
    """The net of --model with the weights of --weights, where the options let it run.

    reads: it is to bring its own data. settings: as Net has them. UserError.
    """
    models = read_weights(args.weights)
    backend = make_backend(args)
    with naming(args.model):
        param = proto.read_net(args.model)
        net = Net(param, backend=backend, level=args.level, stages=args.stage, **settings)
    if reads:
        check_fed(net, args.model)
        compare_preprocessing(net, args.model, models)
    load_weights(net, models, args)
    return net


def compare_preprocessing(net: Net, file: str, models: list[Model]) -> None:
    """Warn where a net scales its images otherwise, or subtracts another mean, than that which the
    models were trained with. (The net's own prototxt counts, as in Caffe.)"""
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
    """Copy the weights of layers with the same names, one file after the other, and let go of
    each. UserError where nothing matches, and with --strict where anything does not."""
    mismatch = loading.load_weights([net], models) if models else ""
    if mismatch and args.strict:
        raise UserError(f"{mismatch}: {NOT_STRICT}")
