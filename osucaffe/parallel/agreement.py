"""The consistency of ranks: the check, with its messages, that they agree before they train
together, and the averaging of the batch statistics that each measures.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..comm.job.job import Job
from ..errors import Fault, UserError, listed
from ..layers.base import Layer
from ..net import Net
from ..proto import caffe_pb2, format_text

_SHOWN = 3
"""Differences that a message shows at most."""
_HIDDEN = "#"
"""The prefix of a value that is not shown to the reader."""


def digest(content: bytes) -> str:
    """A short stand-in for a value that is too long, or not meant, to be shown."""
    return f"{_HIDDEN}{zlib.crc32(content):08x}"


def check_alike(job: Job, parts: dict[str, str]) -> None:
    """UserError on every rank unless this is the same on all. They call it together.

    parts: by the name that a message gives it, each value as text, or its `digest`.
    """
    described = job.gather(parts)
    differences: list[str] = []
    for name in dict.fromkeys(name for settings in described for name in settings):
        values = [settings.get(name, "none") for settings in described]
        if wrong := outliers(values, usual=values[0]):
            # The first of them speaks for the others.
            value, first = values[wrong[0]], values[0]
            shown = "" if _HIDDEN in (value[:1], first[:1]) else f" ({value} and not {first})"
            differences.append(f"{name_ranks(wrong)} a different {name} from rank 0{shown}")
    if differences:
        more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise UserError(
            f"{'; '.join(differences[:_SHOWN])}{more}: give all ranks the same options and files"
        )


def outliers(values: Sequence[object], usual: object = None) -> list[int]:
    """The ranks whose value is not the usual one: by default, that of most of them."""
    if usual is None:
        usual = Counter(values).most_common(1)[0][0]
    return [rank for rank, value in enumerate(values) if value != usual]


def name_ranks(ranks: Sequence[int]) -> str:
    """Subject and verb of a message on ranks."""
    names = listed(ranks)
    return f"rank {names} has" if len(ranks) == 1 else f"ranks {names} have"


def describe_layers(net: caffe_pb2.NetParameter, where: str = "the net") -> dict[str, str]:
    """A net's parts: its layers."""
    return {
        f'layer "{layer.name}" (number {number} of {where})': digest(
            layer.SerializeToString(deterministic=True)
        )
        for number, layer in enumerate(net.layer)
    }


def check_weights(job: Job, net: Net, occasion: str) -> None:
    """Fault on every rank unless all have the same weights: it names those whose are not those
    of most ranks, and the layers. They call it together. Statistics of batches are left out."""
    local = _sums(net)
    sums = [tuple(row) for row in job.gather(list(local.values()))]
    if not (wrong := outliers(sums)):
        return
    right = next(rank for rank in range(job.size) if rank not in wrong)
    differ = {
        layer
        for rank in wrong
        for layer, value, expected in zip(local, sums[rank], sums[right], strict=True)
        if value != expected
    }
    layers = [f'"{layer.name}"' for layer in net.layers if layer in differ]
    raise Fault(
        f"{occasion} the weights of rank {listed(wrong)} are not those of rank "
        f"{right}, in layer {listed(layers, _SHOWN)}: the ranks have diverged. Check "
        "that all hosts run the same program and libraries, and their memory and GPUs for faults"
    )


def _sums(net: Net) -> dict[Layer, int]:
    """A checksum of what each layer has learned."""
    sums: dict[Layer, int] = {}
    for layer in net.layers:
        learned = [
            parameter.data
            for number, parameter in enumerate(layer.parameters)
            if number not in layer.statistics
        ]
        if learned:
            sums[layer] = 0
        for data in learned:
            sums[layer] = zlib.crc32(net.backend.read(data).tobytes(), sums[layer])
    return sums


_OWN = ("net", "train_net", "test_net", "net_param", "train_net_param", "test_net_param")


def describe_solver(param: caffe_pb2.SolverParameter) -> dict[str, str]:
    """A solver's settings, but its nets and the snapshot prefix, which only rank 0 uses."""
    parts = {}
    for field, value in param.ListFields():
        if field.name not in (*_OWN, "snapshot_prefix"):
            alone = caffe_pb2.SolverParameter(**{field.name: value})
            text = " ".join(format_text(alone).split())
            parts[f"{field.name} of the solver"] = text.removeprefix(f"{field.name}: ")
    return parts


def average_statistics(net: Net, job: Job) -> None:
    """Give every rank the mean of all ranks' statistics. All ranks call it together.

    Where rank 0 alone updates the weights (blocking or overlapped propagation), its statistics have
    replaced the others' with each update, and stay. The variance is the mean of the ranks'
    variances: the variance of their means is not added.
    """
    blobs = [layer.parameters[i] for layer in net.layers for i in layer.statistics]
    if not blobs:
        return
    local = [net.backend.read(blob.data).astype(np.float64) for blob in blobs]
    gathered = job.gather(local)
    for blob, values in zip(blobs, zip(*gathered, strict=True), strict=True):
        net.backend.write(blob.data, np.mean(values, axis=0).astype(np.float32))
