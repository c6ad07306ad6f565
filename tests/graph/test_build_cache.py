"""What a net remembers of other shapes: a net whose shapes layers give, too, goes on as a new one
would, but prepares only what it has not had before."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.graph import build_cache
from osucaffe.net import Net
from tests.layers import nets

TEXT = """force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 6 dim: 2 dim: 9 dim: 8 } } }
layer { name: "s" type: "Input" top: "s" input_param { shape { dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
  convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "spp" type: "SPP" bottom: "pool" top: "spp" spp_param { pyramid_height: 2 } }
layer { name: "filter" type: "Filter" bottom: "spp" bottom: "s" top: "rows" }
layer { name: "ip" type: "InnerProduct" bottom: "rows" top: "ip"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "drop" type: "Dropout" bottom: "ip" top: "drop" }
layer { name: "sum" type: "Reduction" bottom: "drop" top: "sum" loss_weight: 1 }
"""
SHAPES = ((9, 8), 3), ((11, 8), 3), ((11, 8), 5), ((9, 8), 5), ((9, 12), 2), ((9, 8), 3)


def results(net: Net, image: tuple[int, int], rows: int) -> dict[str, np.ndarray]:
    """All blobs and gradients behind a pass over images of this size, of which some are left."""
    random = np.random.default_rng([*image, rows])
    net.random.step = rows  # the same elements are dropped
    net.reshape({"x": (6, 2, *image)})
    net.write("x", random.standard_normal((6, 2, *image)).astype(np.float32))
    net.write("s", np.arange(6) < rows)
    net.forward()
    net.backward()
    found = {name: net.read(name) for name in net.blobs}
    found |= {f"{name} diff": net.backend.read(blob.diff) for name, blob in net.blobs.items()}
    return found | {p.name: net.backend.read(p.blob.diff) for p in net.parameters}


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the calls that are prepared."""
    names: list[str] = []

    def prepare(backend: Cpu, calls, beside=()):
        calls = list(calls)
        names.extend(call.name for call in calls)
        return real(backend, calls, beside)

    real = Cpu.prepare
    monkeypatch.setattr(Cpu, "prepare", prepare)
    return names


def test_shapes_that_come_and_go_change_no_value() -> None:
    net = nets.build(TEXT, phase="TRAIN")
    for image, rows in SHAPES:
        fresh = nets.build(TEXT, phase="TRAIN")
        found, expected = results(net, image, rows), results(fresh, image, rows)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, err_msg=f"{name} of {image}, {rows}")


def test_what_was_prepared_for_a_shape_is_not_again(prepared: list[str]) -> None:
    net = nets.build(TEXT, phase="TRAIN")
    assert not any("backward" in name for name in prepared)  # that waits until it runs
    results(net, (9, 8), 3)
    everything = len(prepared)
    prepared.clear()
    results(net, (9, 8), 5)
    assert "convolution" not in prepared  # it comes before the layer that gives other shapes
    assert "inner_product" in prepared
    for image, rows in SHAPES[:-1]:
        results(net, image, rows)
    prepared.clear()
    results(net, *SHAPES[-1])
    results(net, *SHAPES[2])
    of_filter = {"host", "fill", "gather", "gather_backward"}  # it may find any number of rows
    assert set(prepared) == of_filter | {"total"}
    assert len(prepared) < everything


def test_shapes_that_are_remembered_have_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "osucaffe"):
        net = nets.build(TEXT, phase="TRAIN")
        for image, rows in SHAPES[:-1]:
            results(net, image, rows)
    remembered = net._cache._blobs.values()
    placed = {blob for blob in remembered if blob.data.array is not None}
    assert placed <= set(net.blobs.values())
    assert len(remembered) > 1.5 * len(net.blobs)
    assert sum("Memory for blobs" in record.message for record in caplog.records) == 1


def test_so_many_shapes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_cache, "REMEMBERED_LAYERS", 2)
    net = nets.build(TEXT, phase="TRAIN")
    for width in range(8, 16):
        results(net, (9, width), 3)
        assert len(net._cache._nodes) <= 4 * len(net.nodes)
