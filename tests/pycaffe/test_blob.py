"""What scripts have of a net's memory: arrays, views, pointers and addresses follow the net, count
as long as they are there, and are NumPy's."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import osucaffe.pycaffe as caffe

from .nets import feed, same

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
