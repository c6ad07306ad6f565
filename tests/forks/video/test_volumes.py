"""C3D's layers of clips, against loops over frames, rows and columns."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.proto import read_weights, write_weights
from tests.layers.nets import build, inputs, layer
from tests.layers.test_values import run

random = np.random.default_rng(6)


def windows(shape, kernel, stride, pad, up):
    """Each output place with the beginning of its window, and how many places there are."""
    counts = []
    for x, k, s, p in zip(shape, kernel, stride, pad, strict=True):
        room = x + 2 * p - k
        counts.append((-(-room // s) if up else room // s) + 1)
    for place in itertools.product(*map(range, counts)):
        start = [at * s - p for at, s, p in zip(place, stride, pad, strict=True)]
        yield place, start, counts


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_filters_over_frames(version: str) -> None:
    x, w, b = (random.standard_normal(s) for s in ((2, 3, 4, 6, 5), (4, 3, 3, 2, 2), (4,)))
    text = "num_output: 4 kernel_size: 2 kernel_depth: 3 pad: 1 temporal_pad: 1 stride: 2 "
    text += "temporal_stride: 1"
    text = f"convolution{'3d' if version == '1.1' else ''}_param {{ {text} }}"
    found = run("Convolution3D", [x], text, parameters=[w, b])
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1), (1, 1)])
    wanted = np.zeros(found.shape)
    for place, start, counts in windows((4, 6, 5), (3, 2, 2), (1, 2, 2), (1, 1, 1), False):
        assert found.shape == (2, 4, *counts)
        t, i, j = (each + 1 for each in start)
        window = padded[:, :, t : t + 3, i : i + 2, j : j + 2]
        wanted[(slice(None), slice(None), *place)] = np.einsum("nctij,octij->no", window, w) + b
    np.testing.assert_allclose(found, wanted)


@pytest.mark.parametrize(("method", "pad"), [("MAX", 0), ("AVE", 0), ("AVE", 1)])
def test_poolings_over_frames(method: str, pad: int) -> None:
    x = random.standard_normal((2, 3, 5, 6, 4))
    text = f"pool: {method} kernel_size: 3 kernel_depth: 2 stride: 2 temporal_stride: 2 pad: {pad}"
    found = run("Pooling3D", [x], f"pooling3d_param {{ {text} }}")
    wanted = np.full(found.shape, np.nan)
    for place, start, counts in windows((5, 6, 4), (2, 3, 3), (2, 2, 2), (0, pad, pad), True):
        assert found.shape == (2, 3, *counts)
        size, parts = 1, []
        for at, k, p, extent in zip(start, (2, 3, 3), (0, pad, pad), (5, 6, 4), strict=True):
            size *= min(at + k, extent + p) - at
            parts.append(slice(max(at, 0), min(at + k, extent)))
        window = x[(slice(None), slice(None), *parts)]
        pooled = window.max((2, 3, 4)) if method == "MAX" else window.sum((2, 3, 4)) / size
        wanted[(slice(None), slice(None), *place)] = pooled
    np.testing.assert_allclose(found, wanted)
    older = run("Pooling3D", [x], f"pooling_param {{ {text} }}")
    np.testing.assert_array_equal(older, found)


def test_weights_of_both_versions_are_read(tmp_path: Path) -> None:
    text = inputs({"x": (1, 2, 3, 4, 4)})
    text += """layer { name: "op" type: "Convolution3D" bottom: "x" top: "y" convolution3d_param {
        num_output: 3 kernel_size: 2 kernel_depth: 2 weight_filler { type: "xavier" } } }"""
    net = build(text, Cpu())
    saved = net.to_proto()
    blobs = next(each for each in saved.layer if each.name == "op").blobs
    del blobs[1].shape.dim[:]
    blobs[1].shape.dim.extend([1, 1, 1, 1, 3])
    blobs[1].data[:] = [1, 2, 3]
    write_weights(tmp_path / "w.caffemodel", saved)
    net.load(read_weights(tmp_path / "w.caffemodel"))
    bias = net.backend.read(layer(net, "op").parameters[1].data)
    np.testing.assert_array_equal(bias, [1, 2, 3])
