"""The fastest candidate is chosen that works and computes what the others do; once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda, backend
from osucaffe.backends.cuda.autotune import timing, tuner
from osucaffe.backends.cuda.autotune.trial import Trial
from osucaffe.backends.cuda.autotune.tuner import Tuner, disagreeing, signature
from osucaffe.backends.cuda.call import Candidate, Context, Provider, fallbacks, skip_if_faster_than
from osucaffe.backends.cuda.runtime import compile
from osucaffe.backends.primitives.recording import Primitive, Read, Write
from osucaffe.backends.tensor import Tensor
from osucaffe.errors import UserError

from ..simulated import simulate, with_libraries


class Offered(Provider):
    """Candidates that take so long each, by name; `built`, `made`: the names of those."""

    def __init__(
        self,
        name: str = "offered",
        *,
        needed_above_ms: float = 0.0,
        eager: bool = True,
        estimates: dict[str, float] | None = None,
        **milliseconds: float | Exception,
    ) -> None:
        self.name, self.eager = name, eager
        self.milliseconds = milliseconds
        self.needed_above_ms, self.estimates = needed_above_ms, estimates or {}
        self.built: list[str] = []
        self.made: list[str] = []

    def build(self, ctx: Context) -> None:
        self.built += self.milliseconds

    def build_named(self, ctx: Context, name: str) -> None:
        self.built.append(name)

    def candidates(self) -> Iterable[Candidate]:
        for name in self.milliseconds:
            yield Candidate(name, self._maker(name), self.estimates.get(name, 0.0))

    def _maker(self, name: str) -> Callable[[Context], Any]:
        def make(ctx: Context) -> Any:
            self.made.append(name)
            taken = self.milliseconds[name]

            def step() -> None:
                if isinstance(taken, Exception):
                    raise taken

            step.milliseconds = taken  # type: ignore[attr-defined]
            return step

        return make


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSUCAFFE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def ctx(monkeypatch: pytest.MonkeyPatch) -> Context:
    """A call on a GPU on which what runs takes the time that it says."""
    simulate(monkeypatch)
    for name in "once", "time_of":
        monkeypatch.setattr(timing, name, lambda backend, run, *_: run.milliseconds)
    monkeypatch.setattr(Trial, "step", lambda self, candidate: candidate.make(self._like))
    return new_call(with_libraries(Cuda(precision="bf16")))


class Work(Primitive, abstract=True):
    """A call that does anything."""

    x: Read
    y: Write
    axis: int


def new_call(backend: Any, rows: int = 4) -> Context:
    x, y = Tensor((rows, 3)), Tensor((rows, 3))
    return Context(backend, Work(x, y, 1).changed(layer="layer"))


def chosen(ctx: Context, *providers: Provider) -> str:
    return ctx.backend.tuner.fastest(ctx, providers).name


def test_the_fastest_is_chosen_once(ctx: Context) -> None:
    first, second = Offered("a", slow=2.0, fast=0.5), Offered("b", medium=0.7)
    assert chosen(ctx, first, second) == "fast"
    assert first.made + second.made == ["slow", "fast", "medium"]
    assert chosen(ctx, first, second) == "fast"
    assert len(first.made + second.made) == 3
    assert ctx.call.implementation == "a: fast"
    ctx.backend.tuner = Tuner(ctx.backend, "none")
    ctx.call.implementation = ""
    assert chosen(ctx, Offered("a", fast=9.0, other=0.1)) == "fast"
    assert ctx.call.implementation == "a: fast"
    assert chosen(ctx, Offered("a", other=0.1)) == "other"  # that one is gone


def test_calls_that_differ_are_told_apart(ctx: Context) -> None:
    texts = {signature(ctx), signature(new_call(ctx.backend, 5))}
    ctx.call.accumulates = frozenset(["y"])
    texts.add(signature(ctx))
    ctx.call.axis = 0
    texts.add(signature(ctx))
    ctx.call.x = Tensor((4, 3), "int32")
    texts.add(signature(ctx))
    ctx.call.x = Tensor((4, 1, 3)).view((4, 3))
    texts.add(signature(ctx))
    assert len(texts) == 6


def test_what_fails_is_dropped_with_a_debug_line(
    ctx: Context, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    offered = Offered(broken=RuntimeError("ptxas: too many registers"), fine=1.0)
    assert chosen(ctx, offered) == "fine"
    said = [record for record in caplog.records if "left out" in record.getMessage()]
    assert [each.levelname for each in said] == ["DEBUG"]
    assert "work of layer: offered: broken is left out: ptxas" in said[0].getMessage()


def test_where_all_fail_one_message_says_why(ctx: Context) -> None:
    with pytest.raises(UserError, match=r'layer "layer": nothing .* work of \[\[4, 3\]\] .*ptxas'):
        chosen(ctx, Offered(broken=RuntimeError("ptxas: too many registers")))


@pytest.mark.parametrize("last", ["out of memory", "ptxas"])
def test_out_of_memory_in_all_trials_is_told(ctx: Context, last: str) -> None:
    failures = {
        "a": RuntimeError("cudaErrorMemoryAllocation: out of memory"),
        "b": RuntimeError(last),
    }
    with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
        chosen(ctx, Offered(**failures))


def test_what_need_not_be_asked_is_not(ctx: Context) -> None:
    good = Offered("good", fast=0.5)
    spared = Offered("spared", needed_above_ms=0.6, faster=0.1)
    assert chosen(ctx, good, spared, *fallbacks([Offered("spare", fastest=0.01)])) == "fast"
    assert spared.made == []
    again = new_call(ctx.backend, 9)
    assert chosen(again, Offered("slow", slow=0.7), spared) == "faster"
    failing = Offered("bad", broken=RuntimeError("no"))
    spare = fallbacks([Offered("spare", last=9.0)])
    assert chosen(new_call(ctx.backend, 7), failing, *spare) == "last"


def test_what_is_not_promising_is_not_timed(ctx: Context) -> None:
    estimated = Offered("own", estimates={"a": 0.4, "b": 0.6}, a=0.45, b=0.1)
    assert chosen(ctx, Offered("library", plan=0.5), estimated) == "a"
    assert estimated.made == ["a"]


def test_candidates_are_built_when_the_call_is_known(ctx: Context) -> None:
    tuner = ctx.backend.tuner
    eager, lazy = Offered("eager", a=1.0, b=2.0), Offered("lazy", eager=False, c=3.0)
    pending = tuner.begin(ctx, [eager, lazy])
    assert eager.built == ["a", "b"]
    assert lazy.built == []
    tuner.begin(new_call(ctx.backend), [eager, lazy])  # one like it
    assert eager.built == ["a", "b"]
    pending.step()
    ctx.backend.tuner = Tuner(ctx.backend, "none")
    known = Offered("eager", a=1.0, b=2.0)
    ctx.backend.tuner.begin(ctx, [known, lazy])
    assert known.built == ["a"]


def test_the_user_is_told_once_why_he_waits(
    ctx: Context, caplog: pytest.LogCaptureFixture, folder: Path
) -> None:
    caplog.set_level(logging.INFO)
    for rows in 4, 5:
        chosen(new_call(ctx.backend, rows), Offered(a=1.0))
    [said] = [each.getMessage() for each in caplog.records]
    assert str(folder) in said


def values(*numbers: float) -> list[np.ndarray]:
    return [np.array(numbers, np.float32)]


@pytest.mark.parametrize(
    ("outputs", "odd"),
    [
        ([values(1, 2)], set()),
        ([values(1, 2), values(1, 2.01), values(1, 1.99)], set()),
        ([values(1, 2), values(1.2, 2), values(1, 2)], {1}),
        ([values(1, 2), values(1.2, 2)], {1}),  # the first comes from a library
        ([values(1, np.nan), values(1, 2), values(1.01, 2)], {0}),
        ([values(1, np.inf), values(1, 2)], {0}),
        ([values(1, 2), values(2, 1), values(0, 0), values(1, 2), values(1, 2)], {1, 2}),
        ([values(np.nan), values(np.nan)], set()),
    ],
    ids=str,
)
def test_what_disagrees_is_found(outputs: list[list[np.ndarray]], odd: set[int]) -> None:
    assert disagreeing(outputs, [str(number) for number in range(len(outputs))], 0.02) == odd


def test_configurations_of_one_kernel_have_one_voice() -> None:
    right, wrong = values(1, 2), values(1.2, 2)
    assert disagreeing([right, wrong, wrong, wrong], "laaa", 0.02) == {1, 2, 3}
    assert disagreeing([wrong, right, right, right], "laab", 0.02) == {0}
    assert disagreeing([right, right, wrong, right], "laaa", 0.02) == {2}


@pytest.mark.parametrize("spare", [True, False])
def test_what_a_library_says_is_heard_though_it_need_not_be_asked(
    spare: bool, ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all configurations of our kernel are wrong in the same way; of the library, one of its
    candidates runs. Where they are right, the fastest is chosen as it was."""
    own, library = Offered("own", a=0.1, b=0.2, c=0.3), Offered("library", plan=9.0, other=8.0)
    library.of_library = True
    providers = fallbacks([library]) if spare else skip_if_faster_than(5.0, [library])
    says = {"plan": values(1.0)} | dict.fromkeys("abc", values(3.0))
    monkeypatch.setattr(Trial, "samples", lambda self: says[(library.made or own.made)[-1]])
    assert chosen(ctx, own, *providers) == "plan"
    assert library.made == ["plan"]
    own.made, library.made = [], []
    says |= dict.fromkeys("abc", values(1.0))
    assert chosen(new_call(ctx.backend, 7), own, *providers) == "a"
    assert library.made == ["plan"]


def test_what_disagrees_is_dropped(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    offered = Offered("own", right=0.3, wrong=0.1, fine=0.5)
    found = {"right": values(1.0), "wrong": values(3.0), "fine": values(1.001)}
    monkeypatch.setattr(Trial, "samples", lambda self: found[offered.made[-1]])
    assert chosen(ctx, offered) == "right"
    assert any(
        "own: wrong is left out: it does not agree" in each.message for each in caplog.records
    )


def test_a_library_is_not_asked_to_the_end_where_each_takes_long(ctx: Context) -> None:
    names = [f"p{i}" for i in range(tuner.MAX_SLOWER_IN_A_ROW + 4)]
    heavy = Offered("a", **dict.fromkeys(names, 2.0) | {"p0": 1.0})
    light = Offered("b", **dict.fromkeys(names, timing.BRIEF))
    assert chosen(ctx, heavy, light) == "p0"
    assert heavy.made == names[: tuner.MAX_SLOWER_IN_A_ROW + 1]
    assert light.made == names


def test_what_is_remembered_is_of_these_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An installed package has compiled Python files beside them. Comments make no difference."""
    simulate(monkeypatch)
    monkeypatch.setattr(compile, "FOLDER", tmp_path)
    monkeypatch.setattr(backend.cudnn, "version", lambda: "9.20.0")
    (tmp_path / "__pycache__").mkdir()
    names = set()
    for text in "one\n", "// Worth it.\none\n", "other\n":
        compile.read.cache_clear()
        (tmp_path / "some.cu").write_text(text)
        made = with_libraries(Cuda())
        del made.tuner
        names.add(made.tuner._choices.path.name)
    assert len(names) == 2
