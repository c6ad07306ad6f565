"""Scripts on a GPU: arrays in step with the device, the same numbers as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import osucaffe.pycaffe as caffe

from .nets import DEPLOY, SIMPLE, SOLVER, label, write
from .test_python_layer import INPUT, layer

pytestmark = pytest.mark.gpu


@pytest.fixture
def pair(tmp_path):
    """Makes a net on the CPU and the same one on the GPU, in fp32 on both."""

    def make(text, phase=caffe.TRAIN):
        path = write(tmp_path, text)
        first = caffe.Net(path, phase)
        first.save(str(tmp_path / "weights"))
        caffe.set_mode_gpu()
        caffe.set_precision("fp32")
        return first, caffe.Net(path, phase, weights=str(tmp_path / "weights"))

    yield make
    caffe.set_precision(None)


def test_forward_backward_and_shapes(pair):
    nets = pair(DEPLOY, caffe.TEST)
    data = np.random.default_rng(1).standard_normal((4, 3, 6, 6)).astype(np.float32)
    seed = np.random.default_rng(2).standard_normal((4, 5, 1, 1)).astype(np.float32)
    for size in (4, 2):
        results = []
        for net in nets:
            net.blobs["data"].reshape(size, 3, 6, 6)
            outputs = dict(net.forward(data=data[:size], blobs=["conv"]))
            net.clear_param_diffs()
            outputs |= net.backward(prob=seed[:size])
            outputs["weight diff"] = net.params["conv"][0].diff
            results.append({name: array.copy() for name, array in outputs.items()})
        for name, expected in results[0].items():
            np.testing.assert_allclose(results[1][name], expected, rtol=1e-3, atol=1e-4)


def test_tops_without_elements(pair):
    text = INPUT + layer("Empty", top="none found")
    text += layer("TimesTen", "none", "again") + layer("TimesTen", "found", "ten")
    text += 'layer { name: "s" type: "Silence" bottom: "none" bottom: "again" }'
    for net in pair(text):
        for count in (0, 2, 0):
            net.blobs["data"].data[...] = count
            assert net.forward()["ten"].shape == (count,)
            assert net.blobs["again"].data.shape == (0, 4)
            assert net.backward()["data"].all()


def test_what_a_script_writes_reaches_the_device(pair):
    first, second = pair(SIMPLE)
    for net in (first, second):
        label(net)
        net.forward(end="data")
    second.blobs["data"].data[...] = first.blobs["data"].data
    for net in (first, second):
        net.params["conv"][0].data[...] *= 0.5
        net.forward(start="conv")
        net.backward()
        net.backward()
    for name in ("conv", "ip"):
        for one, other in zip(first.params[name], second.params[name], strict=True):
            np.testing.assert_allclose(other.data, one.data, rtol=1e-5)
            np.testing.assert_allclose(other.diff, one.diff, rtol=2e-3, atol=1e-3)


def test_a_solver_trains(tmp_path):
    caffe.set_mode_gpu()
    text = f'net: "{write(tmp_path, SIMPLE)}" snapshot_prefix: "{tmp_path}/run"' + SOLVER
    solver = caffe.SGDSolver(write(tmp_path, text, "solver.prototxt"))
    label(solver.net)
    label(solver.test_nets[0])
    seen = []

    def on_gradients():
        seen.append(float(np.abs(solver.net.params["ip"][0].diff).sum()))

    solver.add_callback(lambda: None, on_gradients)
    before = solver.net.params["ip"][0].data.copy()
    solver.step(12)
    assert len(seen) == 12
    assert min(seen) > 0
    assert np.abs(solver.net.params["ip"][0].data - before).max() > 0
    solver.net.params["ip"][0].data[...] = 0
    solver.net.params["ip"][0].diff[...] = 1
    solver.snapshot()
    saved = caffe.Net(write(tmp_path, SIMPLE), str(tmp_path / "run_iter_12.caffemodel"), caffe.TEST)
    assert not saved.params["ip"][0].data.any()


def test_python_layers(pair):
    text = INPUT.replace("dim: 8", "") + layer("Bias", "data", "x") + layer("TimesTen", "x", "y")
    nets = pair(text)
    for net in nets:
        net.blobs["data"].data[...] = 2
        assert (net.forward()["y"] == 50).all()
        net.blobs["y"].diff[...] = 1
        assert (net.backward()["data"] == 10).all()
        assert (net.params["x"][0].diff == 100).all()


def test_sharing(pair):
    _, first = pair(DEPLOY, caffe.TEST)
    _, second = pair(DEPLOY, caffe.TEST)
    second.share_with(first)
    first.params["conv"][0].data[...] = 0
    second.forward()
    np.testing.assert_allclose(second.blobs["prob"].data, 0.2, rtol=1e-5)


def test_sharing_after_passes_that_were_captured(pair):
    _, first = pair(DEPLOY, caffe.TEST)
    _, second = pair(DEPLOY, caffe.TEST)
    second.params["conv"][1].data[...] = 3
    for _ in range(4):
        second.forward()
    second.share_with(first)
    first.params["conv"][0].data[...] = 0
    first.params["conv"][1].data[...] = np.arange(5)
    expected = np.exp(np.arange(5)) / np.exp(np.arange(5)).sum()
    for _ in range(4):
        second.forward()
        np.testing.assert_allclose(second.blobs["prob"].data[0].ravel(), expected, rtol=1e-4)


def test_any_number_of_items(pair):
    nets = pair(DEPLOY, caffe.TEST)
    data = np.random.default_rng(1).standard_normal((19, 3, 6, 6)).astype(np.float32)
    one, other = (net.forward_all(blobs=["pool"], data=data) for net in nets)
    for name, expected in one.items():
        assert len(expected) == 19
        np.testing.assert_allclose(other[name], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("first", [100, 200])
def test_random_sessions(first, monkeypatch):
    from osucaffe.backends.cuda import Cuda
    from tests.differential import search, sessions

    monkeypatch.setattr(sessions.settings._Settings, "given", Cuda(precision="fp32"))
    search.check_cases(sessions.KIND, 1, range(first, first + 25))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_forward_only_nets(tmp_path, precision):
    path = write(tmp_path, DEPLOY)
    plain = caffe.Net(path, caffe.TEST)
    plain._forward_only = None
    plain.save(str(tmp_path / "weights"))
    caffe.set_mode_gpu()
    caffe.set_precision(precision)
    try:
        net = caffe.Net(path, caffe.TEST, weights=str(tmp_path / "weights"))
    finally:
        caffe.set_precision(None)
    bound = 1e-3 if precision == "fp32" else 0.05
    for step, size in enumerate([4, 4, 4, 2, 4, 4]):
        data = np.random.default_rng(step).standard_normal((size, 3, 6, 6)).astype(np.float32)
        results = []
        for each in (net, plain):
            each.blobs["data"].reshape(size, 3, 6, 6)
            each.params["conv"][1].data[...] = step / 4
            outputs = dict(each.forward(data=data))
            results.append({name: array.copy() for name, array in outputs.items()})
            if step > 3:
                results[-1]["conv"] = each.blobs["conv"].data.copy()
        for name, expected in results[1].items():
            np.testing.assert_allclose(results[0][name], expected, rtol=bound, atol=bound)
