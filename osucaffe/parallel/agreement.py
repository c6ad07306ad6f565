"""Owns what ranks must agree on before they train together, and what is said where they do not."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

from ..comm.job import Job
from ..errors import UserError
from ..proto import caffe_pb2, format_text

_SHOWN = 3
"""Differences that a message has."""
_HIDDEN = "#"
"""What a value begins with that tells a reader nothing."""


def digest(content: bytes) -> str:
    """What stands for a value that is too long to be shown, or tells nothing."""
    return f"{_HIDDEN}{zlib.crc32(content):08x}"


def check_alike(job: Job, parts: dict[str, str]) -> None:
    """UserError on every rank unless this is the same on all. They call it together.

    parts: by the name that a message gives it, each value as text, or its `digest`.
    """
    described = job.gather(parts)
    found: list[str] = []
    for name in dict.fromkeys(name for each in described for name in each):
        values = [each.get(name, "none") for each in described]
        if wrong := odd_ones(values, usual=values[0]):
            # The first of them speaks for the others.
            found.append(_tell(name, wrong, values[wrong[0]], values[0]))
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise UserError(
            f"{'; '.join(found[:_SHOWN])}{more}: give all ranks the same options and files"
        )


def _tell(name: str, ranks: Sequence[int], value: str, first: str) -> str:
    shown = "" if _HIDDEN in (value[:1], first[:1]) else f" ({value} and not {first})"
    return f"{name_ranks(ranks)} another {name} than rank 0{shown}"


def odd_ones(values: Sequence[object], usual: object = None) -> list[int]:
    """The ranks whose value is not the usual one: by default, that of most of them."""
    if usual is None:
        usual = Counter(values).most_common(1)[0][0]
    return [rank for rank, value in enumerate(values) if value != usual]


def name_ranks(ranks: Sequence[int]) -> str:
    """Subject and verb of a message on ranks."""
    names = ", ".join(map(str, ranks))
    return f"rank {names} has" if len(ranks) == 1 else f"ranks {names} have"


def describe_layers(net: caffe_pb2.NetParameter, where: str = "the net") -> dict[str, str]:
    """A net's parts: its layers."""
    return {
        f'layer "{layer.name}" (number {number} of {where})': digest(
            layer.SerializeToString(deterministic=True)
        )
        for number, layer in enumerate(net.layer)
    }


_OWN = ("net", "train_net", "test_net", "net_param", "train_net_param", "test_net_param")


def describe_solver(param: caffe_pb2.SolverParameter) -> dict[str, str]:
    """A solver's settings; not its nets, nor where snapshots go, which is rank 0's affair."""
    parts = {}
    for field, value in param.ListFields():
        if field.name not in (*_OWN, "snapshot_prefix"):
            alone = caffe_pb2.SolverParameter(**{field.name: value})
            text = " ".join(format_text(alone).split())
            parts[f"{field.name} of the solver"] = text.removeprefix(f"{field.name}: ")
    return parts
