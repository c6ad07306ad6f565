"""The solvers as scripts use them: solve, step, updates, callbacks, snapshots, shapes."""

from __future__ import annotations

import numpy as np
import pytest

import osucaffe.pycaffe as caffe

from .nets import SIMPLE, SOLVER, label, write


def make(folder, changes="", kind=caffe.SGDSolver):
    net = write(folder, SIMPLE)
    text = f'net: "{net}" snapshot_prefix: "{folder}/run"' + SOLVER + changes
    solver = kind(write(folder, text, "solver.prototxt"))
    label(solver.net)
    for test_net in solver.test_nets:
        label(test_net)
    return solver


def test_solve_runs_up_to_max_iter(tmp_path):
    solver = make(tmp_path)
    assert solver.iter == 0
    before = solver.net.params["ip"][0].data.copy()
    solver.solve()
    assert solver.iter == 100
    assert not np.array_equal(before, solver.net.params["ip"][0].data)
    shared = solver.test_nets[0].params["ip"][0].data
    assert np.shares_memory(shared, solver.net.params["ip"][0].data)


def test_an_update_takes_the_gradients_that_a_script_set(tmp_path):
    solver = make(tmp_path)
    blob = solver.net.layers[1].blobs[0]
    data = blob.data[...]
    data[...] = 0
    blob.diff[...] = 1
    solver.apply_update()
    np.testing.assert_allclose(data, -0.01, atol=1e-7)
    assert (solver.iter, solver.lr) == (0, pytest.approx(0.01))


def test_nets_outlive_their_solver(tmp_path):
    solver = make(tmp_path)
    nets = [solver.net, *solver.test_nets]
    assert len(nets) == 2
    del solver
    for net in nets:
        for blobs in net.params.values():
            assert all(np.isfinite(blob.data.sum() + blob.diff.sum()) for blob in blobs)
        assert all(np.isfinite(blob.data.sum() + blob.diff.sum()) for blob in net.blobs.values())


def test_snapshots_are_written_and_restored(tmp_path):
    solver = make(tmp_path)
    solver.step(3)
    solver.snapshot()
    weights = solver.net.params["ip"][0].data.copy()
    for kind in ("caffemodel", "solverstate"):
        assert (tmp_path / f"run_iter_3.{kind}").is_file()
    solver.step(2)
    caffe.set_random_seed(9)
    other = make(tmp_path)
    held = other.net
    other.restore(str(tmp_path / "run_iter_3.solverstate"))
    assert other.iter == 3
    assert other.net is held
    np.testing.assert_array_equal(other.net.params["ip"][0].data, weights)
    label(other.net)
    other.solve()
    assert other.iter == 100
    with pytest.raises(RuntimeError, match="none"):
        other.restore(str(tmp_path / "none.solverstate"))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (caffe.NesterovSolver, ""),
        (caffe.AdaGradSolver, "momentum: 0"),
        (caffe.RMSPropSolver, "momentum: 0 rms_decay: 0.9"),
        (caffe.AdaDeltaSolver, "delta: 1e-6"),
        (caffe.AdamSolver, ""),
    ],
)
def test_each_solver(tmp_path, kind, changes):
    text = SOLVER.replace("momentum: 0.9", "" if "momentum" in changes else "momentum: 0.9")
    path = write(tmp_path, f'net: "{write(tmp_path, SIMPLE)}"' + text + changes, "solver.prototxt")
    solver = kind(path)
    before = solver.net.params["ip"][0].data.copy()
    solver.step(1)
    assert not np.array_equal(before, solver.net.params["ip"][0].data)
    assert solver.type == kind.rule


def test_get_solver_takes_the_files_type(tmp_path):
    solver = make(tmp_path, 'type: "Adam"', caffe.get_solver)
    assert solver.type == "Adam"
    assert solver.param.max_iter == 100


def test_callbacks_see_each_iteration(tmp_path):
    solver = make(tmp_path, "iter_size: 2")
    seen = []

    def on_start():
        seen.append(("start", solver.iter))

    def on_gradients():
        seen.append(("gradients", solver.iter, np.abs(solver.net.params["ip"][0].diff).sum() > 0))
        for blobs in solver.net.params.values():
            for blob in blobs:
                blob.diff[...] = 0

    solver.add_callback(on_start, on_gradients)
    before = solver.net.params["ip"][1].data.copy()
    solver.step(2)
    assert seen == [
        (name, iteration, *more)
        for iteration in range(2)
        for name, more in (("start", ()), ("gradients", (True,)))
    ]
    assert np.abs(solver.net.params["ip"][1].data - before).max() < 1e-3  # weight decay alone


def test_a_solvers_net_can_be_reshaped(tmp_path):
    net = SIMPLE.replace('bottom: "conv" top: "ip_blob"', 'bottom: "pool" top: "ip_blob"')
    pool = (
        'layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" '
        "pooling_param { pool: AVE global_pooling: true } }"
    )
    net = net.replace('layer { name: "ip"', pool + '\nlayer { name: "ip"')
    path = write(tmp_path, f'net: "{write(tmp_path, net)}"' + SOLVER, "solver.prototxt")
    solver = caffe.SGDSolver(path)
    label(solver.net)
    solver.step(2)
    solver.net.blobs["data"].reshape(3, 2, 6, 5)
    solver.net.blobs["label"].reshape(3, 1, 1, 1)
    weights = solver.net.params["ip"][0].data
    before = weights.copy()
    solver.step(2)
    assert solver.net.blobs["conv"].data.shape == (3, 11, 11, 10)
    assert not np.array_equal(before, weights)
    assert solver.iter == 4


def test_missing_file_raises_runtime_error(tmp_path):
    with pytest.raises(RuntimeError, match="nothing"):
        caffe.SGDSolver(str(tmp_path / "nothing.prototxt"))


def test_each_step_smooths_its_own_losses_and_policies_go_on(tmp_path, caplog, monkeypatch):
    """As Caffe's; but the policy and snapshots do not see where a step began."""
    text = SOLVER.replace('"inv"', '"plateau" plateau_winsize: 9').replace(
        "display: 100", "display: 1 average_loss: 3"
    )
    monkeypatch.setitem(globals(), "SOLVER", text)
    runs, shown = [], []
    for steps in ([4], [1, 1, 1, 1]):
        caffe.set_random_seed(1)
        runs.append(solver := make(tmp_path))
        caplog.clear()
        with caplog.at_level("INFO", "osucaffe"):
            for each in steps:
                solver.step(each)
        lines = [record.getMessage() for record in caplog.records]
        shown.append([float(line.split("loss = ")[1]) for line in lines if "), loss = " in line])
    smoothed, single = shown
    assert smoothed[0] == single[0]
    assert smoothed[2:] == pytest.approx([np.mean(single[:3]), np.mean(single[1:])], rel=1e-4)
    recent = [list(run._solver.losses.recent) for run in runs]
    assert recent[0] == recent[1]
