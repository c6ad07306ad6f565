"""`oc.Solver`: steps, history, batches of the caller's, what is seen of it, what is wrong."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import osucaffe as oc
from osucaffe.api.history import History
from osucaffe.api.logs import parse
from osucaffe.solvers.observer import Display, TestResult
from tests.api.test_net import Foreign

NET = """
name: "tiny"
layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  data_param { source: "nowhere" batch_size: 64 backend: LMDB } }
layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TEST }
  data_param { source: "nowhere" batch_size: 64 backend: LMDB } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy"
  include { phase: TEST } }
"""
SOLVER = (
    'base_lr: 0.5 lr_policy: "fixed" momentum: 0.5 display: 2 max_iter: 12 test_iter: 3 '
    "test_interval: 6 random_seed: 3 snapshot_after_train: false"
)
RANDOM = np.random.default_rng(1)
LABELS = RANDOM.integers(0, 3, 60)
DATA = (np.eye(3)[LABELS] + 0.1 * RANDOM.normal(size=(60, 3))).astype(np.float32)


def batches(size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(DATA[at : at + size], LABELS[at : at + size]) for at in range(0, 60, size)]


@pytest.fixture
def solver_text(tmp_path: Path) -> str:
    (tmp_path / "net.prototxt").write_text(NET)
    return f'net: "{tmp_path}/net.prototxt" {SOLVER}'


def make(text: str, **options: object) -> oc.Solver:
    given = {"data": batches(20), "test_data": batches(20), "threads": 1} | options
    return oc.Solver(text, **given)  # type: ignore[arg-type]


def test_it_trains_on_batches_and_tells(solver_text: str, capsys: pytest.CaptureFixture) -> None:
    solver = make(solver_text)
    solver.step(6)
    assert solver.iteration == 6
    solver.solve()
    rows = solver.history
    assert [row["iteration"] for row in rows] == [0, 2, 4, 6, 8, 10, 12]
    assert rows[0].keys() == {
        *("iteration", "seconds", "lr", "loss", "test accuracy", "test loss"),
    }
    assert rows[-1]["test accuracy"] == solver.test()["accuracy"] == 1
    assert rows[-1]["test loss"] < rows[0]["test loss"]
    assert 'Solver of net "tiny" (SGD, base_lr 0.5): iteration 12 of 12' in repr(solver)
    assert "test accuracy 1" in repr(solver)
    assert "<table>" in solver._repr_html_()
    assert capsys.readouterr() == ("", "")  # quiet: no log, no progress where there is no terminal
    assert not logging.getLogger("osucaffe").handlers


def test_curves_and_a_line_of_progress(
    solver_text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solver = make(solver_text, progress=True)
    solver.solve()
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("████████████████████ 12/12, 0 s left, ")
    assert "test accuracy 1" in lines[-1]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    short = make(solver_text)
    for _ in range(3):
        short.step()
    assert not capsys.readouterr().err  # no line each for what takes no time
    html = solver.plot()._repr_html_()
    assert html.count("<polyline") == 3
    assert "test accuracy" in html
    solver.plot().save(tmp_path / "curves.html")
    assert html in (tmp_path / "curves.html").read_text()


def test_batches_of_any_size_and_form_give_the_same(solver_text: str) -> None:
    def weights(data: object) -> np.ndarray:
        solver = make(solver_text, data=data, test_data=None, test_iter=[], test_interval=0)
        assert solver.net.blobs["data"].shape[0] == 20
        solver.step(7)
        return solver.net.params["ip"].weight.numpy()

    expected = weights(batches(20))
    ragged = [batches(20)[0], (DATA[20:23], LABELS[20:23]), (DATA[23:], LABELS[23:])]
    np.testing.assert_array_equal(weights(ragged), expected)
    named = [{"label": y, "data": x, "more": 0} for x, y in batches(20)]
    np.testing.assert_array_equal(weights(named), expected)
    np.testing.assert_array_equal(weights([(Foreign(x), y) for x, y in batches(20)]), expected)


def test_all_records_and_a_function_for_each_pass(solver_text: str) -> None:
    def weights(data: object) -> np.ndarray:
        solver = make(solver_text, data=data, test_data=(DATA, LABELS))
        assert solver.net.blobs["data"].shape[0] == 60
        solver.step(2)
        return solver.net.params["ip"].weight.numpy()

    expected = weights(batches(60))
    np.testing.assert_array_equal(weights((DATA, LABELS)), expected)
    np.testing.assert_array_equal(weights({"label": LABELS, "data": DATA}), expected)
    np.testing.assert_array_equal(weights(lambda: iter(batches(60))), expected)
    many = make(solver_text, data=(np.tile(DATA, (2, 1)), np.tile(LABELS, 2)))
    assert many.net.blobs["data"].shape[0] == 64  # as the data layer says


def test_an_observer_ends_training(solver_text: str) -> None:
    class Stop(oc.Observer):
        def on_test(self, event: TestResult) -> None:
            if event.iteration == 6:
                solver.stop()

    solver = make(solver_text, observers=[Stop()])
    solver.solve()
    assert solver.iteration == 7  # the iteration after the test
    solver.solve()
    assert solver.iteration == 12


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader(solver_text: str, tmp_path: Path, workers: int) -> None:
    torch = pytest.importorskip("torch")
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(DATA), torch.from_numpy(LABELS))

    def loader(**options: object) -> object:
        return torch.utils.data.DataLoader(tensors, 20, num_workers=workers, **options)

    solver = make(solver_text, data=loader(), snapshot_prefix=f"{tmp_path}/run")
    solver.step(4)
    state = solver.snapshot().replace("caffemodel", "solverstate")
    solver.step(5)
    resumed = make(solver_text, data=loader(), resume=state)
    resumed.step(5)
    expected = make(solver_text)
    expected.step(9)
    for each in solver, resumed:
        np.testing.assert_array_equal(
            each.net.params["ip"].weight, expected.net.params["ip"].weight
        )
    shuffled = make(solver_text, data=loader(shuffle=True), test_data=loader())
    shuffled.solve()
    assert shuffled.test()["accuracy"] == 1


@pytest.mark.parametrize("size", [60, 7])
def test_a_resumed_run_goes_on_at_its_batch(solver_text: str, tmp_path: Path, size: int) -> None:
    first = [(DATA[:20], LABELS[:20])]
    whole = make(solver_text, data=first + batches(size), snapshot_prefix=f"{tmp_path}/run")
    whole.step(5)
    state = whole.snapshot().replace("caffemodel", "solverstate")
    whole.step(4)
    expected = whole.net.params["ip"].weight.numpy()
    whole.restore(state)
    resumed = make(solver_text, data=first + batches(size), resume=state)
    passed = make(solver_text, data=iter(9 * (first + batches(size))), resume=state)
    for each in whole, resumed, passed:
        each.step(4)
        np.testing.assert_array_equal(each.net.params["ip"].weight, expected)
    with pytest.raises(oc.UserError, match="data: it cannot go back to record 100: give"):
        passed.restore(state)


def test_nets_with_several_inputs_get_parts_of_one_batch(tmp_path: Path) -> None:
    inputs = "".join(
        f'layer {{ name: "{name}" type: "Input" top: "{name}" '
        f"input_param {{ shape {{ {dims} }} }} }}"
        for name, dims in (("data", "dim: 20 dim: 3"), ("label", "dim: 20"))
    )
    (tmp_path / "net.prototxt").write_text(inputs + NET[NET.index('layer { name: "ip"') :])
    solver = make(f'net: "{tmp_path}/net.prototxt" {SOLVER}')
    solver.solve()
    assert solver.test()["accuracy"] == 1


def test_snapshots_and_observers(solver_text: str, tmp_path: Path) -> None:
    class Noting(oc.Observer):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def on_display(self, event: Display) -> None:
            self.seen.append(event.iteration)

    noting, prefix = Noting(), str(tmp_path / "run")
    solver = make(solver_text, observers=[noting], snapshot_prefix=prefix)
    solver.step(5)
    assert noting.seen == [0, 2, 4]
    model = solver.snapshot()
    assert model == f"{prefix}_iter_5.caffemodel"
    kept = solver.net.params["ip"].weight.numpy()
    solver.step(2)
    solver.restore(f"{prefix}_iter_5.solverstate")
    np.testing.assert_array_equal(solver.net.params["ip"].weight, kept)
    again = make(solver_text, resume="auto", snapshot_prefix=prefix)
    assert again.iteration == 5
    begun = make(solver_text, weights=model)
    np.testing.assert_array_equal(begun.net.params["ip"].weight, kept)


def test_what_is_wrong_is_a_user_error(solver_text: str, tmp_path: Path) -> None:
    def once() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield from batches(20)

    wrong = [(DATA[:20], LABELS[:20]), (DATA[:20], LABELS[:20] + 7)]
    cases: list[tuple[dict[str, object], str]] = [
        (
            {"max_itr": 3},
            "max_itr: not an option, nor a setting of a solver .did you mean max_iter",
        ),
        ({"max_iter": "many"}, "max_iter='many'"),
        ({"data": [DATA]}, "data: a batch must have data, label"),
        ({"data": []}, "there are no more batches"),
        ({"data": once()}, "there are no more batches"),
        ({"data": [(DATA[:20], LABELS[:3])]}, "have 3, 20 records|have 20, 3 records"),
        ({"data": [batches(20)[0], (DATA[:20, :2], LABELS[:20])]}, r"records of \(2,\)"),
        ({"data": wrong}, "has label"),
        ({"data": None}, "nowhere"),
        ({"observers": [print]}, "no observer"),
        ({"test_data": [{"data": DATA}]}, "test_data: a batch must have data, label"),
    ]
    for options, words in cases:
        with pytest.raises(oc.UserError, match=words):
            make(solver_text, **options).solve()
    with pytest.raises(oc.UserError, match="not a solver"):
        oc.Solver(3)
    with pytest.raises(oc.UserError, match="cannot read it"):
        oc.Solver(tmp_path / "none.prototxt")
    with pytest.raises(oc.UserError, match="cannot be copied"):
        copy.copy(make(solver_text))


def test_a_log_gives_the_same_history(root: Path) -> None:
    log = parse(
        [
            f"I1121 09:22:{at:02d}.000000  4711 solver.py:218] {text}"
            for at, text in enumerate(
                (
                    "Iteration 0, Testing net (#0)",
                    "    Test net output #0: accuracy = 0.1",
                    "Iteration 0 (4 iter/s, 1s/2 iters), loss = 2.5",
                    "    Train net output #0: loss = 2.25 (* 1 = 2.25 loss)",
                    "Iteration 0, lr = 0.5",
                )
            )
        ]
    )
    (row,) = History.of(log).rows
    assert row == {
        "iteration": 0,
        "seconds": 3,
        "lr": 0.5,
        "loss": 2.25,
        "test accuracy": 0.1,
    }
