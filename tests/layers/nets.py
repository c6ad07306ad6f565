"""Owns the small nets that the layer tests build: from text, with given inputs and parameters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from google.protobuf import text_format

from osucaffe.net import Net
from osucaffe.proto import caffe_pb2


def build(text: str, backend, *, phase: str = "TEST", **options) -> Net:
    """A net from prototxt text."""
    return Net(
        text_format.Parse(text, caffe_pb2.NetParameter()),
        phase=phase,
        backend=backend,
        seed=1,
        **options,
    )


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


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference in proportion to the largest wanted value."""
    assert found.shape == wanted.shape, f"shape {found.shape}, not {wanted.shape}"
    if not wanted.size:
        return 0.0
    scale = np.abs(wanted).max() or 1.0
    return float(np.abs(found.astype(np.float64) - wanted).max() / scale)
