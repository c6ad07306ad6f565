"""The training loop: its options, its log lines and its observers."""

from __future__ import annotations

import logging
import math
import re
from pathlib import Path

import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.proto import NetParameter, blob_to_array, read_weights, write_weights
from osucaffe.solvers import Display, Observer, TestResult
from osucaffe.solvers.nets import Choice
from osucaffe.solvers.snapshots.retention import KeepBest

from .runs import NET, parameters, solver


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "osucaffe"]


@pytest.fixture(autouse=True)
def _log_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "osucaffe")


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_loss_that_is_no_number_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    run = solver("display: 1 max_iter: 20 base_lr: 1e30")
    run.solve()
    assert len([text for text in messages(caplog) if "training has diverged" in text]) == 1
    caplog.clear()
    solver("display: 1 max_iter: 20").solve()
    assert "training has diverged" not in caplog.text


def test_clipping_is_told_where_it_happens(caplog: pytest.LogCaptureFixture) -> None:
    for limit, told in (0.01, True), (1e6, False):
        caplog.clear()
        solver(f"clip_gradients: {limit} display: 1").step(1)
        lines = [text for text in messages(caplog) if text.startswith("Gradient clipping")]
        assert len(lines) == told
        assert all(re.search(r"\(L2 norm \S+ > 0.01\) by scale factor", line) for line in lines)


class Notes(Observer):
    def __init__(self) -> None:
        self.displays: list[Display] = []
        self.tests: list[TestResult] = []
        self.ends: list[tuple[int, bool]] = []

    def on_display(self, event: Display) -> None:
        self.displays.append(event)

    def on_test(self, event: TestResult) -> None:
        self.tests.append(event)

    def on_end(self, iteration: int, stopped: bool) -> None:
        self.ends.append((iteration, stopped))


LOG = [
    r"Solving tiny",
    r"Learning Rate Policy: inv",
    r"Iteration 0, Testing net \(#0\)",
    r"Test loss: \S+",
    r"    Test net output #0: loss = (\S+) \(\* 1 = \1 loss\)",
    r"Iteration 0 \(0 iter/s, \S+s/2 iters\), loss = (\S+)",
    r"    Train net output #0: loss = (\S+) \(\* 1 = \1 loss\)",
    r"Iteration 0, lr = 0\.05",
    r"Iteration 2 \(\S+ iter/s, \S+s/2 iters\), loss = \S+",
    r"    Train net output #0: loss = \S+ \(\* 1 = \S+ loss\)",
    r"Iteration 2, lr = 0\.025$",
    r"Snapshotting to binary proto file \S+/run_iter_4\.caffemodel",
    r"Snapshotting solver state to binary proto file \S+/run_iter_4\.solverstate",
    r"Iteration 4, loss = \S+",
    r"Iteration 4, Testing net \(#0\)",
    r"Test loss: \S+",
    r"    Test net output #0: loss = \S+ \(\* 1 = \S+ loss\)",
    r"Optimization Done\.",
]


def test_the_log_speaks_as_caffe_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes()
    run = solver(
        'lr_policy: "inv" gamma: 0.5 power: 1 '
        "display: 2 max_iter: 4 test_iter: 2 test_interval: 4 test_compute_loss: true "
        f'snapshot_after_train: true snapshot_prefix: "{tmp_path}/run"',
        observers=[notes],
    )
    caplog.clear()
    run.solve()
    found = messages(caplog)
    assert len(found) == len(LOG), found
    for text, pattern in zip(found, LOG, strict=True):
        assert re.match(pattern, text), (text, pattern)
    assert [event.iteration for event in notes.tests] == [0, 4]
    assert notes.tests[0].loss == pytest.approx(notes.tests[0].outputs[0].value)
    assert notes.ends == [(4, False)]


def test_a_test_of_no_batches_has_no_values(caplog: pytest.LogCaptureFixture) -> None:
    """As HED's solver has it."""
    notes = Notes()
    settings = "max_iter: 1 test_iter: 0 test_interval: 1000000 test_compute_loss: true"
    run = solver(settings, observers=[notes])
    caplog.clear()
    run.solve()
    tested = [text for text in messages(caplog) if "Test" in text]
    assert tested == ["Iteration 0, Testing net (#0)"]
    assert [(event.outputs, event.loss) for event in notes.tests] == [([], None)]
    with pytest.raises(UserError, match=r"--best loss: .* tests no net"):
        KeepBest(run, "loss", 0)
    solver("max_iter: 1 test_interval: 1").solve()  # Caffe takes it
    assert "test_interval is set, test_iter is not: nothing is tested" in caplog.text


def test_a_stop_saves_and_ends_early(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    requests = iter(["none", "snapshot", "none", "stop"])
    notes = Notes()
    run = solver(
        f'max_iter: 9 snapshot_after_train: true snapshot_prefix: "{tmp_path}/run"',
        request=lambda: next(requests),
        observers=[notes],
    )
    run.solve()
    assert notes.ends == [(4, True)]
    assert sorted(path.name for path in tmp_path.glob("*.solverstate")) == [
        "run_iter_2.solverstate",
        "run_iter_4.solverstate",
    ]
    assert messages(caplog)[-1] == "Optimization stopped early."


def test_snapshots_at_their_interval(tmp_path: Path) -> None:
    run = solver(
        f'max_iter: 6 snapshot: 3 snapshot_after_train: true snapshot_prefix: "{tmp_path}/run" '
        "snapshot_diff: true snapshot_format: HDF5"
    )
    run.solve()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run_iter_3.caffemodel.h5",
        "run_iter_3.solverstate.h5",
        "run_iter_6.caffemodel.h5",
        "run_iter_6.solverstate.h5",
    ]
    blob = read_weights(tmp_path / "run_iter_6.caffemodel.h5").layer[0].blobs[0]
    np.testing.assert_array_equal(
        blob_to_array(blob, "diff"), run.backend.read(run.net.parameters[0].blob.diff)
    )


TWO_TESTS = """
test_net_param { layer { name: "data" type: "DummyData" top: "x" dummy_data_param {
  shape { dim: 2 dim: 1 dim: 6 dim: 6 } data_filler { value: 1 } } }
  layer { name: "conv" type: "Convolution" bottom: "x" top: "z"
    convolution_param { num_output: 4 kernel_size: 3 } }
  layer { name: "pool" type: "Pooling" bottom: "z" top: "a" pooling_param { global_pooling: true }
    include { stage: "pooled" } } }
test_iter: 2 test_iter: 3 test_interval: 10 test_state { stage: "pooled" } test_state {}
"""


@pytest.mark.parametrize("type_", ["SGD", "Adam"])
def test_a_net_without_parameters_shows_its_losses(tmp_path: Path, type_: str) -> None:
    net = """
    layer { name: "data" type: "DummyData" top: "x" top: "y" dummy_data_param {
      shape { dim: 4 dim: 3 } data_filler { type: "gaussian" std: 1 } } }
    layer { name: "loss" type: "EuclideanLoss" bottom: "x" bottom: "y" top: "loss" }
    """
    settings = (
        f'type: "{type_}" max_iter: 6 clip_gradients: 1 display: 2 debug_info: true iter_size: 2 '
        f'snapshot: 4 snapshot_prefix: "{tmp_path}/n" test_iter: 2 test_interval: 3'
    )
    whole = solver(settings, net)
    whole.solve()
    assert whole.loss > 0
    again = solver(settings, net, resume=tmp_path / "n_iter_4.solverstate")
    again.solve()
    assert (again.iteration, again.loss) == (6, whole.loss)


def test_several_test_nets_share_the_weights() -> None:
    run = solver(TWO_TESTS)
    run.step(1)
    first, second = run.test_all()
    assert (first.net, second.net) == (0, 1)
    assert [output.name for output in first.outputs] == ["a"] * 8
    assert [output.index for output in first.outputs] == list(range(8))
    assert [output.name for output in second.outputs] == ["loss"]
    weights = parameters(run)
    wanted = weights["conv:0"].sum((1, 2, 3)) + weights["conv:1"]  # the input is all ones
    found = [output.value for output in first.outputs[:4]]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_weights_are_loaded_by_layer_name_from_several_files(tmp_path: Path) -> None:
    """conv comes from one file, ip from another; a renamed layer keeps its first values."""
    source = solver(f'random_seed: 9 snapshot_prefix: "{tmp_path}/run"')
    for name, layers in (("a", ["conv"]), ("b", ["ip", "other"])):
        weights = source.net.to_proto()
        kept = [layer for layer in weights.layer if layer.name in layers]
        write_weights(tmp_path / f"{name}.caffemodel", NetParameter(layer=kept))
    run = solver(f'weights: "{tmp_path}/a.caffemodel, {tmp_path}/b.caffemodel"')
    np.testing.assert_equal(parameters(run), parameters(source))
    renamed = NET.replace('name: "ip"', 'name: "new"')
    file = f"{tmp_path}/a.caffemodel"
    fresh, tuned = solver("", renamed), solver("", renamed, weights=[file])
    np.testing.assert_array_equal(parameters(tuned)["new:0"], parameters(fresh)["new:0"])
    np.testing.assert_array_equal(parameters(tuned)["conv:0"], parameters(source)["conv:0"])


def test_weights_that_must_match(tmp_path: Path) -> None:
    source = solver(f'random_seed: 9 snapshot_prefix: "{tmp_path}/run"')
    file = source.snapshot().model
    solver("", weights=[file], strict=True)
    renamed = NET.replace('name: "ip"', 'name: "new"')
    solver("", renamed, weights=[file])
    with pytest.raises(UserError, match=r"not loaded: new; unused of .*run_iter_0.caffemodel: ip"):
        solver("", renamed, weights=[file], strict=True)


def test_files_are_read_before_nets_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = solver(f'snapshot_prefix: "{tmp_path}/run"')
    event = run.snapshot()
    model = Path(event.model)
    model.write_bytes(model.read_bytes()[:-10])
    monkeypatch.delattr(Choice, "build")
    for settings, options in (
        (f'weights: "{model}"', {}),
        ("", {"weights": [str(model)]}),
        ("", {"resume": event.state}),
    ):
        with pytest.raises(UserError, match=r"run_iter_0\.caffemodel: .* cut short"):
            solver(settings, **options)
    with pytest.raises(AttributeError, match="build"):
        solver("")


def test_max_iter_that_is_reached_is_refused(tmp_path: Path) -> None:
    run = solver("max_iter: 3")
    run.step(3)
    with pytest.raises(UserError, match=r"already at iteration 3 of max_iter 3"):
        run.solve()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ("snapshot: 5", "snapshot is set, but snapshot_prefix is not"),
        ("average_loss: 0", "average_loss must be at least 1"),
        ('type: "Adagrad"', "solver type 'Adagrad'"),
        ('net: "x.prototxt"', "these do: net, net_param"),
    ],
)
def test_contradictions_name_the_file(settings: str, complaint: str) -> None:
    with pytest.raises(UserError, match=f"solver.prototxt: .*{complaint}"):
        solver(settings)


def test_a_missing_snapshot_folder_is_found_before_training(tmp_path: Path) -> None:
    run = solver(f'max_iter: 5 snapshot: 5 snapshot_prefix: "{tmp_path}/none/run"')
    with pytest.raises(UserError, match="does not exist; make it"):
        run.solve()
    assert run.iteration == 0


@pytest.mark.parametrize("length", [236, 300])
def test_a_prefix_that_is_too_long_is_found_before_training(tmp_path: Path, length: int) -> None:
    """The names of the last snapshot's files, and of their temporaries."""
    prefix = "p" * length
    run = solver(f'max_iter: 10 snapshot: 5 snapshot_prefix: "{tmp_path}/{prefix}"')
    with pytest.raises(UserError, match=r"snapshot_prefix '/.*\.\.\.p{20}' is too long for"):
        run.solve()
    assert run.iteration == 0
    assert not [*tmp_path.iterdir()]


def test_the_longest_prefix(tmp_path: Path) -> None:
    prefix = "p" * (255 - len("_iter_2.solverstate"))
    solver(f'max_iter: 2 snapshot: 2 snapshot_prefix: "{tmp_path}/{prefix}"').solve()
    assert len([*tmp_path.iterdir()]) == 2


def test_nets_are_read_from_files(tmp_path: Path) -> None:
    file = tmp_path / "net.prototxt"
    file.write_text(NET)
    run = solver(f'net: "{file}"', net="")
    run.step(1)
    other = solver("")
    other.step(1)
    np.testing.assert_equal(parameters(run), parameters(other))


def test_debug_info_shows_every_layer(caplog: pytest.LogCaptureFixture) -> None:
    run = solver("debug_info: true display: 2")
    caplog.clear()
    run.step(2)
    shown = [text.split(":")[0] for text in messages(caplog) if "[" in text]
    assert shown == [
        "    [Forward] Layer data, top blob x data",
        "    [Forward] Layer data, top blob label data",
        "    [Forward] Layer conv, top blob conv data",
        "    [Forward] Layer conv, param blob 0 data",
        "    [Forward] Layer conv, param blob 1 data",
        "    [Forward] Layer relu, top blob conv data",
        "    [Forward] Layer drop, top blob conv data",
        "    [Forward] Layer ip, top blob score data",
        "    [Forward] Layer ip, param blob 0 data",
        "    [Forward] Layer ip, param blob 1 data",
        "    [Forward] Layer loss, top blob loss data",
        "    [Backward] Layer loss, bottom blob score diff",
        "    [Backward] Layer ip, bottom blob conv diff",
        "    [Backward] Layer ip, param blob 0 diff",
        "    [Backward] Layer ip, param blob 1 diff",
        "    [Backward] Layer drop, bottom blob conv diff",
        "    [Backward] Layer relu, bottom blob conv diff",
        "    [Backward] Layer conv, param blob 0 diff",
        "    [Backward] Layer conv, param blob 1 diff",
        "    [Backward] All net params (data, diff)",
        "    [Update] Layer conv, param 0 data",
        "    [Update] Layer conv, param 1 data",
        "    [Update] Layer ip, param 0 data",
        "    [Update] Layer ip, param 1 data",
    ]
    updates = [text for text in messages(caplog) if "[Update]" in text]
    assert all(float(text.rsplit(" ", 1)[1]) > 0 for text in updates)


def test_the_loss_of_an_untrained_solver_is_not_a_number() -> None:
    assert math.isnan(solver("").loss)
