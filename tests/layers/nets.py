"""The small nets that the layer tests build: from text, with given inputs and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import NetParameter, parse_text


def build(text: str, backend=None, *, phase: str = "TEST", seed: int = 1, **options) -> Net:
    """A net from prototxt text."""
    param = parse_text(text, NetParameter)
    return Net(param, phase=phase, backend=backend or Cpu(), seed=seed, **options)


def inputs(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """An Input layer for each name."""
    return "".join(
        f'layer {{ name: "in_{name}" type: "Input" top: "{name}" input_param {{ shape {{ '
        + " ".join(f"dim: {extent}" for extent in shape)
        + " } } }\n"
        for name, shape in shapes.items()
    )


def layer(net: Net, name: str):
    """The layer of a net that has this name."""
    return next(each for each in net.layers if each.name == name)


def one_layer(
    text: str,
    given: Mapping[str, np.ndarray],
    backend=None,
    *,
    parameters=(),
    seeds: Mapping[str, np.ndarray] | None = None,
    **options,
) -> Net:
    """A net of one layer, `op`, which has run forward over these values and, with seeds, the
    gradients of tops, backward. text: type, tops and settings."""
    shapes = {name: np.shape(values) for name, values in given.items()}
    bottoms = "".join(f'bottom: "{name}" ' for name in given)
    text = inputs(shapes) + f'layer {{ name: "op" {bottoms}{text} }}'
    if seeds is not None:
        text, options = "force_backward: true\n" + text, options | {"inspectable": True}
    net = build(text, backend, **options)
    for blob, values in zip(layer(net, "op").parameters, parameters, strict=False):
        net.backend.write(blob.data, values)
    for name, values in given.items():
        net.write(name, np.asarray(values))
    net.forward()
    if seeds is not None:
        for name, values in seeds.items():
            net.backend.write(net.blobs[name].diff, values)
        net.backward()
    return net


def gradient(net: Net, name: str) -> np.ndarray:
    """Of a blob."""
    return net.backend.read(net.blobs[name].diff)


def parameter_gradient(net: Net, index: int = 0) -> np.ndarray:
    """Of a parameter of the layer `op`."""
    return net.backend.read(layer(net, "op").parameters[index].diff)


def refuse(text: str, shapes: Iterable[tuple[int, ...]], message: str) -> None:
    """Check that a layer of this text over blobs of these shapes is refused by this message."""
    with pytest.raises(UserError, match=message):
        one_layer(text, {f"x{i}": np.zeros(shape) for i, shape in enumerate(shapes)})


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference in proportion to the largest wanted value."""
    assert found.shape == wanted.shape, f"shape {found.shape}, not {wanted.shape}"
    if not wanted.size:
        return 0.0
    scale = np.abs(wanted).max() or 1.0
    return float(np.abs(found.astype(np.float64) - wanted).max() / scale)
