"""`debug_info`: the mean absolute values of blobs, parameters and gradients, in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from ..backends.tensor import Tensor
from ..net import Net

logger = logging.getLogger("osucaffe")


def forward_and_backward(net: Net, *, accumulate: bool) -> None:
    """Run both and show what each layer computes. The net must be inspectable."""
    net.forward(after=_after_forward(net))
    net.backward(accumulate=accumulate, after=_after_backward(net))
    _show_norms(net)


def _after_forward(net: Net) -> Callable[[int], None]:
    """Shows the tops and parameters of each layer when it has run."""
    for name in net.inputs:
        _show(net, f"[Forward] Input {name} data", net.blobs[name].data)

    def show(index: int) -> None:
        if index == len(net.nodes):  # the step after the layers, which adds up the loss
            return
        node = net.nodes[index]
        layer = f"[Forward] Layer {node.layer.label}"
        for blob in node.top:
            _show(net, f"{layer}, top blob {blob.name} data", blob.data)
        for number, blob in enumerate(node.layer.parameters):
            _show(net, f"{layer}, param blob {number} data", blob.data)

    return show


def _after_backward(net: Net) -> Callable[[int], None]:
    """Shows the gradients of each layer's bottoms and parameters when they are complete."""

    def show(index: int) -> None:
        node = net.nodes[index]
        if not node.backward:
            return
        layer = f"[Backward] Layer {node.layer.label}"
        for blob, down in zip(node.bottom, node.propagate_down, strict=True):
            if down:
                _show(net, f"{layer}, bottom blob {blob.name} diff", blob.diff)
        for number, blob in enumerate(node.layer.parameters):
            if node.layer.need_gradients[number]:
                _show(net, f"{layer}, param blob {number} diff", blob.diff)

    return show


def _show(net: Net, what: str, tensor: Tensor) -> None:
    """The mean absolute value of a tensor."""
    logger.info("    %s: %g", what, np.abs(net.backend.read(tensor)).mean())


def _show_norms(net: Net) -> None:
    """The L1 and L2 norms of all parameters and of all gradients."""
    data = np.hstack([[], *(net.backend.read(p.blob.data).ravel() for p in net.parameters)])
    diff = np.hstack([[], *(net.backend.read(p.blob.diff).ravel() for p in net.parameters)])
    logger.info(
        "    [Backward] All net params (data, diff): L1 norm = (%g, %g); L2 norm = (%g, %g)",
        np.abs(data).sum(),
        np.abs(diff).sum(),
        np.linalg.norm(data),
        np.linalg.norm(diff),
    )


def parameter_values(net: Net) -> list[np.ndarray]:
    """A copy of every parameter."""
    return [net.backend.read(parameter.blob.data) for parameter in net.parameters]


def show_update(net: Net, before: list[np.ndarray]) -> None:
    """Each parameter's mean absolute value before the update, and that of the step it took."""
    for parameter, old in zip(net.parameters, before, strict=True):
        step = old - net.backend.read(parameter.blob.data)
        logger.info(
            "    [Update] Layer %s, param %d data: %g; diff: %g",
            parameter.layer,
            parameter.index,
            float(np.abs(old).mean()),
            float(np.abs(step).mean()),
        )
