"""Owns finding layers that overwrite, in place, what the gradients of a layer before them need."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..backends.tensor import Call

log = logging.getLogger("osucaffe")

_KEEP_SIGNS = {"relu", "dropout"}
"""A ReLU's gradient looks at signs only: of elements that these leave, or that have none behind."""


def overwriters(
    forward: Sequence[Call], backward: Sequence[Call], layers: Sequence[str]
) -> list[tuple[str, str]]:
    """Pairs of layers: the second one overwrites data that the backward pass of the first reads.

    layers: their names, in order.
    """
    order = {name: position for position, name in enumerate(layers)}
    writers: dict[int, list[Call]] = {}
    for call in forward:
        for tensor in call.written_tensors():
            writers.setdefault(id(tensor.base or tensor), []).append(call)
    found: dict[tuple[str, str], None] = {}
    for call in backward:
        position = order.get(call.layer, len(order))
        for tensor in call.read_tensors():
            later = [
                writer
                for writer in writers.get(id(tensor.base or tensor), ())
                if order.get(writer.layer, -1) > position
            ]
            if call.name == "relu_backward" and {each.name for each in later} <= _KEEP_SIGNS:
                continue
            found.update(dict.fromkeys((call.layer, writer.layer) for writer in later))
    return list(found)


def warn_of_overwriters(
    forward: Sequence[Call], backward: Sequence[Call], layers: Sequence[str]
) -> None:
    """Log a line for each pair that `overwriters` finds."""
    for needing, writing in overwriters(forward, backward, layers):
        log.warning(
            'Layer "%s" works in place on what the gradients of layer "%s" need: they are wrong, '
            "as in Caffe. Give its top another name.",
            writing,
            needing,
        )
