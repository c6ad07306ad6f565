"""What was measured once is remembered, and a broken memory only costs time."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.cudnn import MOST_PROPOSED, MOST_TIMED, Cudnn
from osucaffe.backends.cuda.plans import TRIAL_WORDS, Choices, fastest, trial_memory, trial_numbers

from .simulated import simulate


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSUCAFFE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_choice_outlives_the_process() -> None:
    Choices("device").put("what", "this way", 0.25)
    again = Choices("device")
    assert again.get("what") == ("this way", 0.25)
    assert again.get("else") is None
    assert Choices("other device").get("what") is None


def test_nothing_is_left_beside_the_file(folder: Path) -> None:
    choices = Choices("device")
    choices.put("a", "x", 1.0)
    choices.put("b", "y", 2.0)
    assert [path.name for path in folder.iterdir()] == ["device.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": ["x", "slow"]}', "\x00\xff"])
def test_a_broken_file_is_as_good_as_none(text: str, folder: Path) -> None:
    folder.mkdir()
    (folder / "device.json").write_text(text)
    choices = Choices("device")
    assert choices.get("a") is None
    choices.put("a", "x", 1.0)
    assert Choices("device").get("a") == ("x", 1.0)


def test_what_cannot_be_written_is_remembered_for_now(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    choices = Choices("device")
    choices.put("a", "x", 1.0)
    assert choices.get("a") == ("x", 1.0)


@pytest.mark.parametrize(
    ("said", "raised"), [("cudaErrorMemoryAllocation: out of memory", True), ("no kernel", False)]
)
def test_out_of_memory_in_all_trials_is_told(said: str, raised: bool) -> None:
    def run() -> None:
        raise RuntimeError(said)

    with pytest.raises(RuntimeError, match=said) if raised else contextlib.nullcontext():
        assert fastest(Clock().backend, [run, run])[0] is None


class Clock:
    """Stands for a device on which what runs takes the time that it says."""

    def __init__(self) -> None:
        self.now = 0.0
        cuda = SimpleNamespace(Event=self._event, get_elapsed_time=lambda a, b: b.at - a.at)
        stream = SimpleNamespace(begin_capture=self._begin, end_capture=self._end)
        self.backend: Any = SimpleNamespace(cupy=SimpleNamespace(cuda=cuda), stream=stream)

    def _event(self) -> Any:
        event = SimpleNamespace(at=0.0, synchronize=lambda: None)
        event.record = lambda stream: setattr(event, "at", self.now)
        return event

    def _begin(self) -> None:
        self._before, self.now = self.now, 0.0

    def _end(self) -> Any:
        taken, self.now = self.now, self._before
        return SimpleNamespace(launch=lambda stream: setattr(self, "now", self.now + taken))

    def way(self, milliseconds: float, loading: float = 0.0) -> Any:
        """What takes so long, and the first time so much longer."""
        times: list[float] = []

        def run() -> None:
            times.append(milliseconds + (loading if not times else 0))
            self.now += times[-1]

        run.times = times  # type: ignore[attr-defined]
        return run


def test_the_fastest_is_found_and_the_hopeless_are_left() -> None:
    clock = Clock()
    ways = [
        clock.way(*each)
        for each in ((0.5, 300), (0.01, 30), (0.02, 40), (900,), (0.012, 10), (0.009,), (3,))
    ]
    number, taken = fastest(clock.backend, ways)
    assert (number, taken) == (5, pytest.approx(0.009))
    assert [len(way.times) for way in ways[3:]] == [2, 2 + 16, 2 + 16, 2]


def test_a_remembered_plan_is_built_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def named(self: Cudnn, convolution: Any, name: str) -> Any:
        built.append(name)
        return object()

    monkeypatch.setattr(Cudnn, "named", named)
    cudnn = Cudnn.__new__(Cudnn)  # without the library
    cudnn._plans = {}
    cudnn._choices = Choices("device")
    cudnn._choices.put("'a convolution'", "this plan", 0.5)
    convolution: Any = "a convolution"
    found = cudnn.plan(convolution)
    assert found is not None
    assert found[1] == 0.5
    assert built == []
    assert found[0]() is found[0]()
    assert built == ["this plan"]


@pytest.mark.parametrize("nbytes", [2, 4 * TRIAL_WORDS, 20 * TRIAL_WORDS + 6])
def test_kernels_are_tried_on_finite_numbers(
    nbytes: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, folder: Path
) -> None:
    simulate(monkeypatch)
    caplog.set_level(logging.INFO)
    backend = Cuda(precision="bf16")
    trial_memory(backend, 4)
    words = np.asarray(trial_memory(backend, nbytes)).view(np.uint32)
    assert words.nbytes == -(-nbytes // 4) * 4
    np.testing.assert_array_equal(words, np.resize(trial_numbers(), words.size))
    for values in words.view(np.float32), words.view(np.float16):
        assert np.isfinite(values).all()
    [said] = [each.getMessage() for each in caplog.records]  # once, not for each trial
    assert str(folder) in said


class _Proposals:
    """A cuDNN graph that has to compile some of what it proposes, and cannot build other."""

    def __init__(self, names: list[str], compiled: int = 0, refused: int = 0) -> None:
        self.names, self.compiled, self.refused = names, compiled, refused
        self.built: list[str] = []

    def get_execution_plan_count(self) -> int:
        return len(self.names)

    def get_plan_name_at_index(self, index: int) -> str:
        return self.names[index]

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[str]:
        return ["compiled"] if index < self.compiled else []

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return 0

    def build_plan_at_index(self, index: int) -> None:
        if index < self.refused:
            raise RuntimeError("not supported")
        self.built.append(self.names[index])

    def plans(self, work: float) -> list[str]:
        """The names of those that are timed, for a convolution of so much work."""
        cudnn = Cudnn.__new__(Cudnn)  # without the library
        cudnn.handle = 0
        notes = SimpleNamespace(RUNTIME_COMPILATION="compiled")
        cudnn.library = SimpleNamespace(behavior_note=notes, cudnnGraphNotSupportedError=ValueError)
        cudnn._proposed = lambda _: self  # type: ignore[method-assign]
        convolution: Any = SimpleNamespace(operation="forward", precision="bf16", work=work)
        names = [plan.name for plan in cudnn.plans(convolution)]
        assert names == self.built
        return names


@pytest.mark.parametrize(("work", "others"), [(1e9, 1), (1e11, 2)])
def test_few_plans_are_compiled_and_the_best_guess_first(work: float, others: int) -> None:
    names = ["eng4_k24=27", "eng4_k24=22", "eng4_k24=20", "eng4_k24=2", "eng62_k2=1"]
    found = _Proposals(names, compiled=4).plans(work)
    assert found == ["eng4_k24=2", *names[:others], "eng62_k2=1"]


@pytest.mark.parametrize(
    ("refused", "last"), [(0, MOST_TIMED), (10, 10 + MOST_TIMED), (35, MOST_PROPOSED), (45, 46)]
)
def test_what_cannot_be_built_does_not_count(refused: int, last: int) -> None:
    names = [f"eng1_k2={number}" for number in range(50)]
    assert _Proposals(names, refused=refused).plans(1e9) == names[refused:last]
