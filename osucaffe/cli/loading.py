"""What commands make of options that several have: backends, and nets with their weights."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .. import loading, proto
from ..backends.cores import usable_cores
from ..backends.cpu import Cpu
from ..data.ahead.parallel_map import BadRecords
from ..data.pictures.preprocessing import find_preprocessing
from ..errors import UserError, listed, naming
from ..loading import NOT_STRICT, Model
from ..net import Net
from .options import Device, NetOptions

if TYPE_CHECKING:
    from ..backends.cuda import Cuda

logger = logging.getLogger("osucaffe")


def bad_records(skip: bool) -> BadRecords:
    """The handling of bad records by --on_bad_record."""
    return BadRecords(skip=skip, hint="; --on_bad_record skip goes on without it")


_BY_DEFAULT = {
    "tf32": "Computing in tf32, as PyTorch's convolutions do: --precision bf16 is often 1.5 to 2 "
    "times as fast, --precision fp32 exact and slower",
    "fp32": "Computing in fp32: --precision fp16 is faster",
}


def make_backend(device: Device) -> Cpu | Cuda:
    """The backend selected by --gpu and related options."""
    device.check()
    if device.gpu is not None:
        if not device.gpu.isdecimal():
            raise UserError(f"--gpu {device.gpu}: give the number of one GPU, such as 0")
        from ..backends.cuda import Cuda

        backend = Cuda(int(device.gpu), device.precision, graphs=not device.no_graph)
        if device.precision is None:
            logger.info("%s", _BY_DEFAULT[backend.precision])
        return backend

    if (device.threads or 0) > (cores := usable_cores()):
        logger.warning(
            "--threads %d: more than the %d cores that this process may use; this is slow",
            *(device.threads, cores),
        )
    return Cpu(threads=device.threads)


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
    options: NetOptions,
    *,
    reads: bool,
    param: proto.NetParameter | None = None,
    **settings: Any,
) -> Net:
    """The net of --model with the weights of --weights, on the backend of the options.

    reads: it must have data layers. param: what the file says, if it has been read. settings: those
    of Net. UserError.
    """
    models = read_weights(options.weights)
    state, backend = options.state, make_backend(options.device)
    with naming(options.model):
        param = proto.read_net(options.model) if param is None else param
        net = Net(param, backend=backend, level=state.level, stages=state.stages, **settings)
    if reads:
        check_fed(net, options.model)
        compare_preprocessing(net, options.model, models)
    load_weights(net, models, strict=options.strict)
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


def load_weights(net: Net, models: list[Model], *, strict: bool) -> None:
    """Copy the weights of layers with the same names, one file after the other, and free each.
    UserError if nothing matches, and with --strict if anything does not."""
    mismatch = loading.load_weights([net], models) if models else ""
    if mismatch and strict:
        raise UserError(f"{mismatch}: {NOT_STRICT}")
