"""The gradients that a net computes: for which layers backward runs, and to which bottoms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..backends.primitives.recording import Primitive
from ..backends.tensor import Run
from ..blob import Blob
from ..errors import UserError
from ..layers.base import Layer


@dataclass(eq=False)
class Node:
    """A layer in its net: its blobs (an in-place top is the bottom), its tops' loss weights, and
    what `find_gradients` decides: whether backward runs, and to which bottoms.

    calls: what was recorded of it, by the number of the program. steps: of an inspectable net,
    those of its calls that have been prepared. state: of one that is remembered, what the layer
    had set up.
    """

    layer: Layer
    bottom: list[Blob]
    top: list[Blob]
    loss_weight: list[float]
    backward: bool = False
    propagate_down: list[bool] = field(default_factory=list)
    calls: dict[int, list[Primitive]] = field(default_factory=dict)
    steps: dict[Primitive, Run] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)


def find_gradients(nodes: Sequence[Node], *, force: bool) -> None:
    """Set `backward` and `propagate_down` of every node, and `need_gradients` of its layer.

    A gradient is computed where a learning parameter (lr_mult not 0) stands above it and a loss
    below it. propagate_down in the prototxt overrides the first; force_backward (`force`) both.
    """
    needed: set[Blob] = set()  # blobs whose gradient leads to a parameter
    for node in nodes:
        setting = list(node.layer.param.propagate_down)
        if setting and len(setting) != len(node.bottom):
            node.layer.fail(
                "propagate_down", f"has {len(setting)} values for {len(node.bottom)} bottoms"
            )
        leads = [blob in needed for blob in node.bottom]
        node.propagate_down = setting or leads
        node.backward = any(leads) or any(node.layer.need_gradients)
        if node.backward:
            none = node.layer.non_differentiable_tops
            needed.update(blob for i, blob in enumerate(node.top) if i not in none)

    # Under a loss, seen from the end (each blob has one consumer, in-place layers besides).
    under_loss: set[Blob] = set()
    cut: set[Blob] = set()
    for node in reversed(nodes):
        in_loss = [
            weight != 0 or blob in under_loss
            for blob, weight in zip(node.top, node.loss_weight, strict=True)
        ]
        contributes = any(in_loss)
        reached = any(
            weight != 0 or (inside and blob not in cut)
            for inside, blob, weight in zip(in_loss, node.top, node.loss_weight, strict=True)
        )
        if not reached:
            node.backward = False
        if not contributes or not node.backward:
            node.propagate_down = [False] * len(node.bottom)
        for blob, down in zip(node.bottom, node.propagate_down, strict=True):
            if contributes:
                under_loss.add(blob)
            if not down:
                cut.add(blob)

    for node in nodes:
        allowed = [index not in node.layer.no_gradient for index in range(len(node.bottom))]
        if force:
            node.backward = True
            node.propagate_down = allowed
            node.layer.need_gradients = [True] * len(node.layer.need_gradients)
        for index, down in enumerate(node.propagate_down):
            if down and not allowed[index]:
                raise UserError(
                    f"{node.layer.title}: no gradient goes to bottom {index} "
                    f'("{node.layer.param.bottom[index]}"), but a learning layer makes it; give '
                    f"propagate_down: false for it"
                )
