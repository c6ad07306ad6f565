"""What scripts have of a net's memory: arrays, views, pointers and addresses follow the net, count
as long as they are there, and are NumPy's; copies, on a device, which the CPU stands in for here;
memory that is given on demand, and that of shapes that come again."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import osucaffe.pycaffe as caffe
from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.graph import build_cache
from osucaffe.pycaffe import settings, store

from .nets import DEPLOY, FUSED, SSD_BOXES, YOLO_BOXES, Device, feed, same, two_nets, write

WAYS: dict[str, tuple[Callable[[np.ndarray], Any], Callable[[Any], np.ndarray]]] = {
    "the array": (lambda array: array, lambda kept: kept),
    "a part": (lambda array: array[:1], lambda kept: kept),
    "a transposed view": (lambda array: array.T[..., ::2], lambda kept: kept),
    "other views": (lambda array: np.asarray(array).reshape(-1).view(np.int32),
                    lambda kept: kept.view(np.float32)),
    "a list": (lambda array: [array[0]], lambda kept: kept[0]),
    "memoryview": (memoryview, np.asarray),
    "frombuffer": (lambda array: np.frombuffer(array, np.float32), lambda kept: kept),
    "ndarray": (lambda array: np.ndarray((3,), np.float32, array), lambda kept: kept),
    "from_buffer": (lambda array: (ctypes.c_float * 9).from_buffer(array), np.ctypeslib.as_array),
    "a pointer": (lambda array: array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
                  lambda kept: np.ctypeslib.as_array(kept, (5,))),
    "an address": (lambda array: array.ctypes.data,
                   lambda kept: np.ctypeslib.as_array((ctypes.c_float * 5).from_address(kept))),
    "the interface": (lambda array: array.__array_interface__["data"][0],
                      lambda kept: np.ctypeslib.as_array((ctypes.c_float * 5).from_address(kept))),
}  # fmt: skip
"""How a script may keep an array's memory, and get at its numbers again."""


@pytest.mark.parametrize("way", WAYS)
def test_however_a_script_keeps_memory_it_follows(
    nets: tuple[caffe.Net, caffe.Net], way: str
) -> None:
    keep, numbers = WAYS[way]
    blobs = [keep(each.blobs["pool"].data) for each in nets]
    weights = [keep(each.params["conv"][0].data) for each in nets]
    for step in range(4):
        feed(step, *nets)
        for each, kept in zip(nets, weights, strict=True):
            numbers(kept)[...] += 1
            each.forward()
        assert nets[0]._forward_only.is_stale
        np.testing.assert_allclose(*map(numbers, blobs), rtol=1e-5, atol=1e-5)
        same(*nets, ["prob"])


@pytest.mark.parametrize("way", list(WAYS)[:-3])
def test_arrays_that_are_gone_count_no_more(nets: tuple[caffe.Net, caffe.Net], way: str) -> None:
    net, _ = nets
    memory = [net._net.blobs["pool"].data, net.params["conv"][0]._find().data]
    kept = [WAYS[way][0](blob.data) for blob in (net.blobs["pool"], net.params["conv"][0])]
    kept += [blob.data.copy() for blob in (net.blobs["pool"], net.params["conv"][0])]
    assert [net._store.in_use(tensor) for tensor in memory] == [True, True]
    del kept[:2]
    assert [net._store.in_use(tensor) for tensor in memory] == [False, False]


def test_what_scripts_compute_of_arrays_is_plain(net_array: np.ndarray) -> None:
    for made in (
        net_array + 1,
        net_array.sum(axis=0),
        np.exp(net_array),
        np.concatenate([net_array, net_array]),
        pickle.loads(pickle.dumps(net_array)),
    ):
        assert type(made) is np.ndarray
    assert type(net_array.sum()) is np.float32
    assert repr(net_array) == repr(np.array(net_array))
    before = net_array
    net_array += 1
    assert net_array is before


@pytest.fixture
def net_array(nets: tuple[caffe.Net, caffe.Net]) -> np.ndarray:
    return nets[0].params["ip"][0].data


@pytest.fixture(params=[False, True], ids=["host", "device"])
def load_text(request, tmp_path, monkeypatch):
    """Makes TEST nets, on the CPU or what passes for a device."""
    monkeypatch.setattr(settings._Settings, "given", Device() if request.param else None)
    return lambda text: caffe.Net(write(tmp_path, text), caffe.TEST)


@pytest.fixture
def load(load_text):
    return lambda: load_text(DEPLOY)


def counting(monkeypatch, net):
    """What is copied to and from the device from now on, in order."""
    copied = []
    backend = net._net.backend
    for name, real in ("begin_write", backend.begin_write), ("begin_read", backend.begin_read):

        def begin(tensor, values, name=name, real=real):
            copied.append((name, tensor.name))
            real(tensor, values)

        monkeypatch.setattr(backend, name, begin)
    return copied


def test_a_pass_copies_the_input_once_and_the_output_once(tmp_path, monkeypatch):
    monkeypatch.setattr(settings._Settings, "given", Device())
    net = caffe.Net(write(tmp_path, DEPLOY), caffe.TEST)
    net.blobs["data"].reshape(2, 3, 6, 6)
    net.blobs["data"].data[...] = 1
    net.forward()
    copied = counting(monkeypatch, net)
    for _ in range(3):
        net.blobs["data"].data[...] += 1
        assert np.shares_memory(net.forward()["prob"], net.blobs["prob"].data)
        assert copied == [("begin_write", "data"), ("begin_read", "prob")]
        copied.clear()


def test_nets_that_share_parameters_share_arrays_of_them(load):
    one, other = load(), load()
    one.share_with(other)
    for a, b in zip(one.params["conv"], other.params["conv"], strict=True):
        assert np.shares_memory(a.data, b.data)
    one.params["conv"][0].data[...] = 0
    other.params["conv"][0].data[0] = 7
    before = other.forward()["prob"].copy()
    assert (one.params["conv"][0].data[0] == 7).all()
    np.testing.assert_array_equal(one.forward()["prob"], before)


def test_nothing_but_inputs_and_outputs_has_memory_until_a_blob_is_looked_at(load):
    net = load()
    for _ in range(2):
        net.blobs["data"].data[...] = 2
        net.forward(blobs=["conv"])
        net.forward()
        assert net.params["conv"][0].data.any()
        assert not net._net.is_complete
        assert net._net.arena.diff.size == 0
        net.blobs["data"].reshape(2, 3, 6, 6)
    expected = net.forward()["prob"].copy()
    assert net.blobs["pool"].data.any()
    assert net._net.is_complete
    np.testing.assert_array_equal(net.forward()["prob"], expected)
    net.blobs["prob"].diff[...] = 1
    net.backward()
    assert net._net.arena.diff.size


@pytest.mark.parametrize("look", ["data", "diff"])
def test_a_blob_can_be_looked_at_before_anything_has_run(load, look):
    net = load()
    assert not getattr(net.blobs["conv"], look).any()
    assert not net.params["conv"][1].diff.any()


def test_what_fills_an_array_is_copied_by_threads(monkeypatch):
    monkeypatch.setattr(store, "WORTH_THREADS", 64)
    array = np.zeros((3, 5, 7), np.float32).view(store.StagingArray)
    for values in (np.random.default_rng(1).standard_normal((3, 5, 7)), np.ones((5, 7)), 4):
        array[...] = values
        assert (np.asarray(array) == np.broadcast_to(values, array.shape).astype(np.float32)).all()
    array[...] = np.arange(105).reshape(7, 5, 3).T
    assert (np.asarray(array) == np.arange(105).reshape(7, 5, 3).T).all()
    assert type(array + 1) is np.ndarray
    with pytest.raises(ValueError, match="broadcast"):
        array[...] = np.zeros((3, 5, 8))


VIEWED = """
input: "data" input_shape { dim: 2 dim: 3 dim: 4 dim: 5 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 2 kernel_size: 3 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "flat" type: "Flatten" bottom: "conv" top: "flat" }
layer { name: "ip" type: "InnerProduct" bottom: "flat" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.5 } } }
"""


@pytest.mark.parametrize("order", [("conv", "flat"), ("flat", "conv")])
def test_blobs_of_one_memory_have_shapes_of_their_own(load_text, order):
    net = load_text(VIEWED)
    net.blobs["data"].data[...] = np.arange(120).reshape(2, 3, 4, 5)
    for _ in range(2):
        net.forward()
        arrays = {name: net.blobs[name].data for name in order}
        assert {name: array.shape for name, array in arrays.items()} == {
            "conv": (2, 2, 2, 3),
            "flat": (2, 12),
        }
        assert (arrays["conv"].reshape(2, 12) == arrays["flat"]).all()
    arrays[order[0]][...] = 1
    assert (net.blobs[order[1]].data == 1).all()
    weight = net.params["ip"][0].data
    np.testing.assert_allclose(net.forward(start="ip")["ip"][0], weight.sum(axis=1), rtol=1e-5)


BOUNDARY = """
input: "data" input_shape { dim: 2 dim: 3 } input: "unread" input_shape { dim: 2 }
input: "seen" input_shape { dim: 2 dim: 2 dim: 2 } input: "changed" input_shape { dim: 4 }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "flat" type: "Flatten" bottom: "seen" top: "flat" }
layer { name: "power" type: "Power" bottom: "changed" top: "changed" power_param { scale: 2 } }
"""


def test_outputs_in_the_memory_of_inputs_follow_them(load_text):
    net = load_text(BOUNDARY)
    for value in 1, 2, 5:
        for name in net.inputs:
            net.blobs[name].data[...] = value
        outputs = net.forward()
        np.testing.assert_allclose(outputs["ip"][0], net.params["ip"][0].data.sum(1) * value, 1e-5)
        assert (outputs["unread"] == value).all()
        assert (outputs["flat"] == value).all()
        assert outputs["flat"].shape == (2, 4)
        assert (outputs["changed"] == 2 * value).all()
        assert (net.blobs["seen"].data == value).all()


# -- shapes that come again ----------------------------------------------------------------------

SPATIAL = FUSED[: FUSED.index('layer { name: "ip"')] + (
    'layer { name: "map" type: "Softmax" bottom: "pool" top: "map" }'
)
"""A net for pictures of any size."""
SIDE = """
input: "side" input_shape { dim: 1 dim: 5 }
layer { name: "left" type: "InnerProduct" bottom: "side" top: "left"
  inner_product_param { num_output: 4 weight_filler { type: "gaussian" std: 0.4 } } }
"""
NETS = {
    "a map": SPATIAL,
    "boxes": SPATIAL + SSD_BOXES[: SSD_BOXES.index('layer { name: "found"')],
    "detections": SPATIAL + SSD_BOXES,
    "YOLO": SPATIAL + YOLO_BOXES,
    "two inputs": SPATIAL + SIDE,
}


@pytest.fixture(params=[Cpu, Device], ids=["CPU", "device"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cpu:
    made: Cpu = request.param()
    monkeypatch.setattr(settings._Settings, "given", made)
    return made


def pair(folder: Path, text: str) -> list[caffe.Net]:
    """A net, and one of the same parameters that never takes the fast way."""
    nets = two_nets(folder, text)
    for net in nets:
        for blob in net.params["bn"]:
            blob.data[...] = 1
    return nets


def run(net: caffe.Net, height: int, width: int, seed: int = 1) -> dict[str, np.ndarray]:
    """A pass over a picture of this size."""
    net.blobs["data"].reshape(1, 3, height, width)
    data = np.random.default_rng(seed).standard_normal((1, 3, height, width))
    net.blobs["data"].data[...] = data
    return net.forward()


@pytest.mark.parametrize("kind", NETS)
def test_shapes_in_turn(backend: Cpu, tmp_path: Path, kind: str) -> None:
    nets = pair(tmp_path, NETS[kind])
    sizes = [(9, 7), (7, 9), (12, 10)]  # the first two of equally many numbers
    for step, size in enumerate(sizes * 3):
        if "side" in nets[0].inputs:
            for net in nets:
                net.blobs["side"].reshape(1 + step % 2, 5)
                net.blobs["side"].data[...] = step
        found, wanted = (run(net, *size, seed=step) for net in nets)
        assert found.keys() == wanted.keys()
        for name, values in wanted.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5)
        if step == 5:  # what no pass has computed, of a shape that came again
            same(*nets, list(nets[0].blobs))
            nets[0].blobs[nets[0].outputs[0]].diff[...] = 1
            nets[0].backward()


def test_nothing_is_prepared_anew(
    backend: Cpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, _ = pair(tmp_path, NETS["boxes"])
    sizes = [(8 + step, 9) for step in range(build_cache.REMEMBERED + 1)]
    for size in sizes * 2:
        run(net, *size)
    calls: list[str] = []
    copied: list[str] = []
    for name in "prepare", "capture", "allocate", "write":
        monkeypatch.setattr(backend, name, lambda *_, name=name: calls.append(name))
    monkeypatch.setattr(backend, "begin_write", lambda tensor, _: copied.append(tensor.name))
    for size in sizes:
        run(net, *size)
    assert not calls
    assert copied.count("data") == (len(sizes) if isinstance(backend, Device) else 0)


def test_no_more_shapes_are_remembered_than_that(
    backend: Cpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_cache, "REMEMBERED", 2)
    net, plain = pair(tmp_path, SPATIAL)
    for step, size in enumerate([8, 9, 10, 8, 9, 11, 8, 9, 10, 11]):
        for each in net, plain:
            run(each, size, 7, seed=step)
        same(net, plain, ["map"])
        fast = net._forward_only._fast
        assert max(len(net._net._cache), len(fast._cache)) <= 2
        assert len(fast.pool._plans) <= 3


@pytest.mark.parametrize("keep", [lambda array: array, lambda array: np.asarray(array).ravel()])
def test_arrays_of_the_time_before_are_the_scripts_own(
    backend: Cpu, tmp_path: Path, keep: object
) -> None:
    net, _ = pair(tmp_path, SPATIAL)
    kept, values = [], []
    for step in range(6):
        result = run(net, 8 + step % 2, 7, seed=step)["map"]
        for array in result, net.blobs["data"].data:
            kept.append(keep(array))
            values.append(array.copy().reshape(kept[-1].shape))
    np.testing.assert_equal(kept, values)


def test_an_array_that_the_net_had_not_followed_yet_is_the_inputs(
    backend: Cpu, tmp_path: Path
) -> None:
    seen = []
    for net in pair(tmp_path, SPATIAL):
        for _ in range(2):
            net.blobs["data"].reshape(1, 3, 8, 8)
            held = net.blobs["data"].data
            held[...] = 1
            net.forward()
            held[...] = 2
            seen.append(net.blobs["conv"].data.copy())  # of the pass
            seen.append(net.forward()["map"].copy())
            run(net, 9, 9)
    for found, wanted in zip(seen[:4], seen[4:], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_an_input_that_two_layers_read_keeps_what_was_written_early(
    backend: Cpu, tmp_path: Path
) -> None:
    net, _ = pair(
        tmp_path, SPATIAL + 'layer { name: "too" type: "ReLU" bottom: "data" top: "too" }'
    )
    for step in range(6):
        net.blobs["data"].reshape(1, 3, 8 + step % 2, 8)
        held = net.blobs["data"].data
        held[...] = step
        assert (net.forward()["too"] == step).all()
        assert np.shares_memory(held, net.blobs["data"].data)


def test_arrays_of_inputs_that_keep_their_shape_stay_the_inputs(
    backend: Cpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_cache, "REMEMBERED", 2)
    nets = pair(tmp_path, NETS["two inputs"])
    held = [net.blobs["side"].data for net in nets]
    for step, size in enumerate([8, 9, 10, 11, 8, 9, 8, 9]):
        for net, side in zip(nets, held, strict=True):
            side[...] = step
            run(net, size, 7)
        same(*nets, ["left", "map"])
        assert abs(nets[1].blobs["left"].data).max() >= step / 10


def test_a_shape_that_layers_refuse_leaves_the_net_as_it_was(backend: Cpu, tmp_path: Path) -> None:
    net, plain = pair(tmp_path, FUSED)
    for _ in range(2):
        for each in net, plain:
            each.blobs["data"].reshape(4, 3, 9, 9)
            with pytest.raises(UserError, match='layer "ip"'):
                each.reshape()
            each.blobs["data"].reshape(4, 3, 6, 7)
            each.blobs["data"].data[...] = 1
            each.forward()
        same(net, plain, list(net.blobs))
