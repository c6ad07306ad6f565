"""Resuming: training that was stopped and restored equals training that was not, bit for bit."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import blob_to_array, read_state, read_weights, write_state, write_weights
from osucaffe.solvers import Solver
from osucaffe.solvers.nets import Choice

from ..runs import NET, TYPES, assert_same, parameters, solver

FORMATS = Path(__file__).parents[2] / "fixtures" / "formats"
END = {"BINARYPROTO": "", "HDF5": ".h5"}
MNIST = f"""
layer {{ name: "data" type: "Data" top: "x" top: "label" include {{ phase: TRAIN }}
  data_param {{ source: "{FORMATS}/mnist200_lmdb" batch_size: 7 backend: LMDB }}
  transform_param {{ scale: 0.00390625 crop_size: 20 mirror: true }} }}
layer {{ name: "data" type: "Data" top: "x" top: "label" include {{ phase: TEST }}
  data_param {{ source: "{FORMATS}/mnist200_lmdb" batch_size: 9 backend: LMDB }}
  transform_param {{ scale: 0.00390625 crop_size: 20 }} }}
"""
LMDB_NET = NET.split("\nlayer", 1)[0] + MNIST + "layer" + NET.split("\nlayer", 2)[2]


def settings(folder: Path, kind: str = "SGD", form: str = "BINARYPROTO", more: str = "") -> str:
    return (
        f'type: "{kind}" {TYPES[kind]} weight_decay: 0.001 max_iter: 10 '
        f'snapshot_prefix: "{folder}/run" snapshot_format: {form} {more}'
    )


def test_data_positions_tests_and_losses_are_resumed(tmp_path: Path) -> None:
    more = (
        "test_iter: 3 test_interval: 2 iter_size: 2 average_loss: 8 display: 1 clip_gradients: 1 "
        'lr_policy: "multistep" gamma: 0.5 stepvalue: 3 stepvalue: 7'
    )
    text = settings(tmp_path, "Adam", more=more)
    straight = solver(text, LMDB_NET)
    straight.step(10)
    first = solver(text, LMDB_NET)
    first.step(6)
    first.snapshot()
    second = solver(text, LMDB_NET)
    second.restore("auto")
    assert second.policy.current_step == 1
    second.step(4)
    assert_same(second, straight)
    assert second.loss == straight.loss
    assert second.policy.current_step == straight.policy.current_step == 2
    assert second.net.layers[0].position == straight.net.layers[0].position == 10 * 2 * 7
    assert second.test_all() == straight.test_all()


def test_layers_without_names_are_resumed(tmp_path: Path) -> None:
    """Two data layers at other places, several layers with weights, and a net to test."""
    noise = """layer { name: "noise" type: "DummyData" top: "noise" dummy_data_param {
      shape { dim: 7 dim: 1 dim: 20 dim: 20 } data_filler { type: "gaussian" } }
      include { phase: TRAIN } }
    layer { name: "sum" type: "Eltwise" bottom: "x" bottom: "noise" top: "x1"
      include { phase: TRAIN } }
    layer { name: "pass" type: "Power" bottom: "x" top: "x1" include { phase: TEST } }
    layer"""
    named = LMDB_NET.replace('\nlayer { name: "conv"', f'\n{noise} {{ name: "conv"')
    named = named.replace('Convolution" bottom: "x"', 'Convolution" bottom: "x1"')
    text = settings(tmp_path, more="test_iter: 3 test_interval: 4")
    net = re.sub(r'layer \{ name: "\w+"', "layer {", named)
    straight, other = solver(text, net), solver(text, named)
    for mine, its in zip(straight.net.parameters, other.net.parameters, strict=True):
        straight.backend.write(mine.blob.data, other.backend.read(its.blob.data))
    straight.step(10)
    other.step(10)
    np.testing.assert_equal(*(list(parameters(run).values()) for run in (straight, other)))
    assert straight.test_all() == other.test_all()
    first = solver(text, net)
    first.step(6)
    first.net.layers[1].position += 5  # else both are at one place
    state = first.snapshot().state
    second = solver(text, net, resume=state)
    places = [[layer.position for layer in run.net.layers[:2]] for run in (first, second)]
    assert places[0] == places[1] == [6 * 7, 6 + 5]
    for run in (first, second):
        run.step(4)
    assert_same(second, first)
    assert second.test_all() == first.test_all()


def test_hdf5_snapshots_that_cannot_be_written_are_refused_before_training(tmp_path: Path) -> None:
    run = solver(
        settings(tmp_path, form="HDF5", more="snapshot: 5"), NET.replace('name: "ip" ', "")
    )
    with pytest.raises(
        UserError, match=r"unnamed layer \(Inner.*: HDF5 files keep weights by name"
    ):
        run.solve()
    assert run.iteration == 0


def test_a_run_without_a_seed_resumes_in_a_new_process(tmp_path: Path) -> None:
    text = settings(tmp_path, "Nesterov", more="random_seed: -1")
    straight = solver(text, LMDB_NET)
    straight.step(5)
    straight.snapshot()
    straight.step(5)
    program = (
        "from tests.solvers.runs import solver; import sys;"
        "run = solver(sys.argv[1], sys.argv[2]); run.restore('auto'); run.step(5); run.snapshot()"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", program, text, LMDB_NET], cwd=root, check=True)
    resumed = solver(text, LMDB_NET)
    resumed.restore(tmp_path / "run_iter_10.solverstate")
    assert_same(resumed, straight)


def test_nets_are_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed that was drawn when the run began is known before they are."""
    text = settings(tmp_path, more="random_seed: -1 test_iter: 1 test_interval: 2")
    straight = solver(text, LMDB_NET)
    straight.step(3)
    state = straight.snapshot().state
    built = []

    def build(choice: Choice, **settings: Any) -> Net:
        built.append(settings["phase"])
        return Net(choice.param, **settings)

    monkeypatch.setattr(Choice, "build", build)
    resumed = solver(text, LMDB_NET, resume=state)
    assert built == ["TRAIN", "TEST"]
    assert_same(resumed, straight)
    for run in straight, resumed:
        run.step(3)
    assert_same(resumed, straight)
    assert solver(text, LMDB_NET, resume="auto").seed == straight.seed


def test_a_snapshot_during_a_test_resumes_before_it(tmp_path: Path) -> None:
    """A test that a signal interrupts is run again, on the data that it began with."""
    text = settings(tmp_path, more="test_iter: 3 test_interval: 5 test_initialization: false")
    straight = solver(text, LMDB_NET)
    straight.step(10)
    requests = iter(["none"] * 6 + ["snapshot", "stop"])  # 5 iterations, then in the test
    first = solver(text, LMDB_NET, request=lambda: next(requests))
    first.step(10)
    assert first.stopped
    assert first.iteration == 5
    second = solver(text, LMDB_NET)
    second.restore(tmp_path / "run_iter_5.solverstate")
    second.step(5)
    assert_same(second, straight)
    assert second.test_all() == straight.test_all()


@pytest.mark.parametrize("name", ["lenet", "h5lenet"])
def test_states_that_cpp_caffe_wrote_are_restored(name: str, root: Path) -> None:
    path = FORMATS / f"{name}_iter_200.solverstate{'.h5' if name.startswith('h5') else ''}"
    deploy = (root / "models" / "lenet" / "deploy.prototxt").read_text()
    label = 'layer { type: "Input" top: "label" input_param { shape { dim: 64 } } }'
    loss = 'layer { type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }'
    run = solver("momentum: 0.9 max_iter: 300", deploy + label + loss)
    run.restore(path)
    assert run.iteration == 200
    state = read_state(path)
    history = run.optimizer.read_history()
    assert len(history) == len(state.history) == 8
    np.testing.assert_equal(history, [blob_to_array(blob) for blob in state.history])
    model = read_weights(path.with_name(path.name.replace("solverstate", "caffemodel")))
    blobs = [blob for layer in model.layer for blob in layer.blobs]
    np.testing.assert_equal([*parameters(run).values()], [blob_to_array(blob) for blob in blobs])
    run.step(2)
    assert run.iteration == 202


def snapshots(folder: Path, *iterations: int) -> Solver:
    run = solver(settings(folder))
    for iteration in iterations:
        run.step(iteration - run.iteration)
        run.snapshot()
    return run


def test_auto_passes_over_what_is_not_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots(tmp_path, 1, 2, 3, 4, 5)
    (tmp_path / "run_iter_5.caffemodel").unlink()
    cut = tmp_path / "run_iter_4.caffemodel"
    cut.write_bytes(cut.read_bytes()[:-100])
    state = tmp_path / "run_iter_3.solverstate"
    state.write_bytes(state.read_bytes()[:-100])
    (tmp_path / "running_iter_9.solverstate").write_bytes(b"")
    run = solver(settings(tmp_path))
    run.restore("auto")
    assert run.iteration == 2
    passed = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(passed) == 3


@pytest.mark.parametrize("form", END)
def test_damage_that_leaves_a_file_readable_is_found(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = solver(settings(tmp_path, form=form))
    for _ in range(2):
        run.step(1)
        event = run.snapshot()
    for path in (Path(event.model), Path(event.state)):
        whole = path.read_bytes()
        at = whole.index(run.net.arena.data.array[:2].tobytes()) if ".caffe" in path.name else 0
        at = at or len(whole) // 2
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(UserError, match=rf"{path.name}: .* not what its checksum says"):
            solver(settings(tmp_path, form=form)).restore(event.state)
        caplog.clear()
        assert solver(settings(tmp_path, form=form), resume="auto").iteration == 1
        [passed] = [each for each in caplog.records if each.levelname == "WARNING"]
        assert f"Skipping snapshot {event.state}: {path}: damaged" in passed.getMessage()
        path.write_bytes(whole)
    assert solver(settings(tmp_path, form=form), resume="auto").iteration == 2


@pytest.mark.parametrize("form", END)
def test_the_model_of_another_run_is_refused(tmp_path: Path, form: str) -> None:
    """As a run leaves it that is killed between the two files of a snapshot that was there."""
    run = solver(settings(tmp_path, form=form))
    run.step(1)
    event = run.snapshot()
    other = Path(run.snapshot().model).rename(tmp_path / "other")
    run.step(1)
    Path(run.snapshot().model).rename(event.model)
    again = solver(settings(tmp_path, form=form))
    with pytest.raises(UserError, match="is of another run"):
        again.restore(event.state)
    other.rename(event.model)
    again.restore(event.state)
    write_weights(event.model, again.net.to_proto())  # by who changed it: no snapshot's any more
    again.restore(event.state)


def test_auto_without_a_snapshot_begins_afresh(tmp_path: Path) -> None:
    assert solver(settings(tmp_path), resume="auto").iteration == 0


@pytest.mark.parametrize("form", END)
def test_a_damaged_state_is_refused(tmp_path: Path, form: str) -> None:
    run = solver(settings(tmp_path, form=form))
    path = Path(run.snapshot().state)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=path.name):
        solver(settings(tmp_path)).restore(path)


def test_a_damaged_field_of_our_own_is_refused(tmp_path: Path) -> None:
    path = Path(snapshots(tmp_path, 1).snapshot().state)
    state = read_state(path)
    state.osucaffe = state.osucaffe[:-5]
    write_state(path, state)
    with pytest.raises(UserError, match="take an older snapshot"):
        solver(settings(tmp_path)).restore(path)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("Adam", ("", ""), "4 history blobs, but this net needs 8"),
        ("SGD", ("num_output: 4", "num_output: 3"),
         r'layer "conv", parameter 0, has shape \(4, .* has \(3, '),
        ("SGD", ('name: "ip"', 'name: "new"'),
         r"iter_1.solverstate: not loaded: new; unused of .*: ip: it"),
    ],
)  # fmt: skip
def test_the_state_of_another_solver_type_or_net_is_refused(
    tmp_path: Path, kind: str, change: tuple[str, str], message: str
) -> None:
    path = snapshots(tmp_path, 1).snapshot().state
    with pytest.raises(UserError, match=message):
        solver(settings(tmp_path, kind), NET.replace(*change)).restore(path)


def test_a_missing_model_and_a_missing_state_are_named(tmp_path: Path) -> None:
    event = snapshots(tmp_path, 1).snapshot()
    Path(event.model).unlink()
    with pytest.raises(UserError, match=r"run_iter_1\.caffemodel"):
        solver(settings(tmp_path)).restore(event.state)
    with pytest.raises(UserError, match="nowhere"):
        solver(settings(tmp_path)).restore(tmp_path / "nowhere.solverstate")


def test_the_model_is_found_beside_a_state_that_was_moved(tmp_path: Path) -> None:
    snapshots(tmp_path, 2)
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in tmp_path.glob("run_iter_2.*"):
        file.rename(moved / file.name)
    run = solver(settings(tmp_path))
    run.restore(moved / "run_iter_2.solverstate")
    assert run.iteration == 2


def test_a_start_removes_what_a_killed_run_has_left(tmp_path: Path) -> None:
    left = tmp_path / f".run_iter_5.{platform.node()}.{2**22 + 1}.tmp.caffemodel"
    left.write_bytes(b"half")
    solver(settings(tmp_path, more="snapshot: 5")).solve()
    assert not left.exists()
    assert (tmp_path / "run_iter_10.caffemodel").exists()
