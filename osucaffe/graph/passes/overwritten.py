"""Owns the search for in-place layers that overwrite what the gradients of others need."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...backends.tensor import Call

log = logging.getLogger("osucaffe")


def _keeps_signs(call: Call) -> bool:
    """Of elements that are not 0 behind it: a ReLU's gradient looks at signs only."""
    return call.name == "dropout" or (call.name == "relu" and call.settings["slope"] >= 0)


def overwriters(forward: Sequence[Call], backward: Sequence[Call]) -> list[tuple[str, str]]:
    """Pairs of layers' names: the second layer overwrites data that the backward pass of the first
    reads."""
    writers: dict[int, list[Call]] = {}
    for call in forward:
        for tensor in call.written_tensors():
            writers.setdefault(id(tensor.base or tensor), []).append(call)
    found: dict[tuple[int, int], tuple[str, str]] = {}
    for call in backward:
        for tensor in call.read_tensors():
            later = [
                writer
                for writer in writers.get(id(tensor.base or tensor), ())
                if writer.position > call.position
            ]
            if call.name == "relu_backward" and all(map(_keeps_signs, later)):
                continue
            for writer in later:
                found[call.position, writer.position] = call.layer, writer.layer
    return list(found.values())


def warn_of_overwriters(forward: Sequence[Call], backward: Sequence[Call]) -> int:
    """Log a line for each pair that `overwriters` finds; returns how many."""
    found = overwriters(forward, backward)
    for needing, writing in found:
        log.warning(
            'Layer "%s" overwrites, in place, what the gradients of layer "%s" need: they will be '
            "wrong, as in Caffe. Give its top another name.",
            writing,
            needing,
        )
    return len(found)
