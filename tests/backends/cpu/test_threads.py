"""On how many threads calls run: small ones on one, a small forward pass as it was faster."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cpu.onednn import OneDNN, threads
from osucaffe.backends.cpu.workers import Workers
from osucaffe.backends.primitives import Program
from osucaffe.backends.primitives.movement import Copy
from osucaffe.backends.primitives.recording import Primitive
from osucaffe.backends.tensor import Run, Step, Tensor
from tests.layers.nets import build

from .programs import NEEDS_ONEDNN

TASKS = Path("/proc/self/task")


def telling(told: list[object], what: object) -> Step:
    return Step(lambda: told.append(what))


def coalesce(
    steps: list[Step],
    told: list[object],
    alone: Callable[[Step, Primitive], Step | None] = lambda *_: None,
) -> list[Run]:
    return threads.coalesce(steps, told.append, 2, alone)


def test_steps_on_one_thread_run_as_one() -> None:
    told: list[object] = []
    alone = [threads.on_one_thread(telling(told, each), told.append, 2) for each in "abc"]
    begin, *steps = coalesce([*alone[:2], telling(told, "both"), alone[2]], told)
    assert len(steps) == 3
    for step in (begin, *steps):
        step()
    assert told == [2, 1, "a", "b", 2, "both", 1, "c", 2]


def test_a_step_that_fails_leaves_all_threads() -> None:
    told: list[object] = []

    def failing() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        threads.on_one_thread(Step(failing), told.append, 2)()
    assert told == [1, 2]


class Machine:
    """Time that passes only as steps say, and the share of two processors that they have of it, and
    that nobody has."""

    def __init__(self, short: bool) -> None:
        self.now = self.used = self.idled = self.spare = 0.0
        self.told: list[str] = []
        self.takes = {"both": 1.0, "one": 2.0}
        self.share = 2.0
        on_one = self.step("one")
        self.made = 0

        def make() -> Step:
            self.made += 1
            return on_one

        self.run = threads.AdaptiveThreads(
            self.step("both"),
            make,
            2,
            short=short,
            clock=lambda: self.now,
            processors=lambda: self.used,
            idle=lambda: self.idled,
        ).run

    def step(self, name: str) -> Step:
        def run() -> None:
            self.told.append(name)
            self.now += self.takes[name]
            self.used += self.share * self.takes[name]
            self.idled += self.spare * self.takes[name]

        return run

    def runs(self, passes: int) -> list[str]:
        """What ran in so many passes."""
        self.told.clear()
        for _ in range(passes):
            self.run()
        return list(self.told)


TRIAL = ["both"] * 2 * threads.TRIAL_RUNS + ["one"] * 2 * threads.TRIAL_RUNS


def test_what_was_faster_runs_until_both_are_tried_again() -> None:
    machine = Machine(short=True)
    for both, chosen in ((1.5, "both"), (9.0, "one"), (1.5, "both")):
        machine.takes["both"] = both
        lost = 2 * threads.TRIAL_RUNS * abs(both - 2.0)
        kept = max(threads.MIN_KEPT_RUNS, int(lost / (threads.MAX_TRIAL_SHARE * min(both, 2.0))))
        assert machine.runs(len(TRIAL) + kept) == TRIAL + [chosen] * kept
    assert machine.made == 1


def test_what_has_become_slow_does_not_run_for_long() -> None:
    machine = Machine(short=True)
    machine.runs(len(TRIAL) + 10)
    machine.takes["both"] = 9.0
    assert machine.runs(threads.WATCH_PERIOD * (threads.WATCH_PERIOD + 1) + len(TRIAL))[-1] == "one"


def test_a_way_that_takes_microseconds_is_tried_for_longer() -> None:
    machine = Machine(short=True)
    machine.takes = {"both": threads.TRIAL_SECONDS / 100, "one": 1.0}
    assert machine.runs(200).index("one") in (100 + threads.TRIAL_RUNS, 101 + threads.TRIAL_RUNS)


def test_one_thread_is_given_up_where_there_are_many() -> None:
    machine = Machine(short=True)
    machine.takes["one"] = 15.0
    hopeless = ["one"] * threads.GIVE_UP_RUNS + ["both"]
    assert machine.runs(len(TRIAL) // 2 + len(hopeless)) == TRIAL[: len(TRIAL) // 2] + hopeless


def test_the_first_tries_do_not_count() -> None:
    machine = Machine(short=True)
    machine.takes["both"] = 100.0
    machine.runs(threads.TRIAL_RUNS)
    machine.takes["both"] = 1.0
    assert machine.runs(len(TRIAL))[-1] == "both"


def test_a_long_pass_tries_one_thread_only_where_the_cores_are_taken() -> None:
    machine = Machine(short=False)
    assert set(machine.runs(1000)) == {"both"}
    assert not machine.made
    machine.share, machine.takes["both"] = 0.7, 9.0
    assert machine.runs(threads.WATCH_PERIOD + len(TRIAL))[-1] == "one"
    kept = threads.WATCH_PERIOD + int(
        2 * threads.TRIAL_RUNS * 7.0 / (threads.MAX_TRIAL_SHARE * 2.0)
    )
    machine.share, machine.takes["both"] = 2.0, 1.0
    assert machine.runs(kept + len(TRIAL))[-1] == "both"
    assert set(machine.runs(5000)) == {"both"}


def test_all_threads_are_tried_again_once_when_cores_become_idle() -> None:
    machine = Machine(short=False)
    machine.share, machine.takes["both"] = 0.7, 9.0
    assert machine.runs(threads.WATCH_PERIOD + len(TRIAL))[-1] == "one"
    kept = int(threads.TRIAL_RUNS * 7.0 / threads.MAX_TRIAL_SHARE)
    machine.spare = 0.6
    assert set(machine.runs(kept // 4)) == {"one"}
    machine.spare = 1.0
    soon = 3 * threads.WATCH_PERIOD + len(TRIAL)
    assert machine.runs(soon).count("both") == 2 * threads.TRIAL_RUNS  # which is still slow
    assert set(machine.runs(kept // 4)) == {"one"}
    machine.spare, machine.share = 0.2, 0.7
    machine.runs(2 * threads.WATCH_PERIOD)
    machine.spare, machine.share, machine.takes["both"] = 1.0, 2.0, 1.0
    assert machine.runs(soon)[-1] == "both"


def test_a_program_runs_on_one_thread_where_all_of_it_can() -> None:
    told: list[object] = []
    small = threads.on_one_thread(telling(told, "small"), told.append, 2)
    large, other, long = (telling(told, name) for name in ("large", "other", "long"))
    x, y = Tensor((1, 4)), Tensor((1, 4))
    large.call, other.call = Copy(x, y), Copy(x, y)
    long.implementation = "jit"
    on_one = {large: telling(told, "large on one")}
    steps = [small, large, telling(told, "numpy"), other, long]
    (step,) = coalesce(steps, told, lambda step, call: on_one.get(step))
    step()
    assert told == [2, 1, "small", 2, "large", "numpy", "other", "long"]
    while "large on one" not in told:
        told.clear()
        step()
    assert told == [2, 1, "small", "large on one", "numpy", 2, "other", "long"]


def call_of(record: Callable[[Program], None]) -> Primitive:
    program = Program()
    record(program)
    return program.calls[0]


@pytest.mark.parametrize(("inputs", "same"), [(threads.LONGEST_SUM, True), (5000, False)])
def test_only_long_sums_depend_on_the_threads(inputs: int, same: bool) -> None:
    x, w, y = Tensor((1, inputs)), Tensor((100, inputs)), Tensor((1, 100))
    call = call_of(lambda p: p.inner_product(x, w, None, y, axis=1, transpose=False))
    assert threads.same_sums(call) == same
    assert threads.work(call) == 8 * (x.count + w.count + y.count)


NET = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 20 dim: 20 } } }
layer { name: "c1" type: "Convolution" bottom: "x" top: "c1"
  convolution_param { num_output: 40 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "r1" type: "ReLU" bottom: "c1" top: "c1" }
layer { name: "c2" type: "Convolution" bottom: "c1" top: "c2"
  convolution_param { num_output: 24 kernel_size: 3 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "p" type: "Pooling" bottom: "c2" top: "p"
  pooling_param { pool: AVE global_pooling: true } }
layer { name: "ip" type: "InnerProduct" bottom: "c2" top: "ip"
  inner_product_param { num_output: 30 weight_filler { type: "xavier" } } }
"""


LARGER = NET.replace("dim: 20", "dim: 40")
APART = (
    LARGER.replace("num_output: 30", "axis: 2 num_output: 30")
    + 'layer { name: "slopes" type: "PReLU" bottom: "ip" top: "slopes" }'
)


@NEEDS_ONEDNN
@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("text", [LARGER, APART, LARGER.replace("dim: 40", "dim: 200")])
def test_a_net_gives_the_same_bits_on_one_thread_and_on_all(
    monkeypatch: pytest.MonkeyPatch, text: str, count: int
) -> None:
    made: list[tuple[Step, Callable[[], Step]]] = []

    class Both(threads.AdaptiveThreads):
        def __init__(self, on_all: Step, on_one: Callable[[], Step], *rest: int, **more: bool):
            super().__init__(on_all, on_one, *rest, **more)
            made.append((on_all, on_one))

    monkeypatch.setattr(threads, "AdaptiveThreads", Both)
    net = build(text, Cpu(threads=count), inference=True)
    x = np.random.default_rng(0).standard_normal(net.read("x").shape)
    net.write("x", x)
    net.forward()
    first = {name: net.read(name) for name in net.outputs}
    for name, values in first.items():
        net.write(name, np.full_like(values, np.nan))
    net.write("x", x)
    [(_, on_one)] = made
    on_one()()
    for name, values in first.items():
        np.testing.assert_array_equal(net.read(name), values)


def slept() -> dict[str, int]:
    """How often each of the threads but this one has gone to sleep, as soon as all sleep. Those of
    earlier tests may end meanwhile."""
    while True:
        texts = {}
        for path in TASKS.iterdir():
            if int(path.name) != threading.get_native_id():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    texts[path.name] = (path / "status").read_text()
        if all("State:\tS" in text for text in texts.values()):
            count = "voluntary_ctxt_switches:"
            return {name: int(text.split(count)[1].split()[0]) for name, text in texts.items()}
        time.sleep(0.01)


@NEEDS_ONEDNN
@pytest.mark.skipif(not TASKS.exists(), reason="the system does not tell")
@pytest.mark.parametrize(("text", "wakes"), [(NET, False), (LARGER, True)], ids=["tiny", "larger"])
def test_a_pass_that_takes_microseconds_wakes_no_thread(text: str, wakes: bool) -> None:
    net = build(text, Cpu(threads=2), inference=True)
    net.forward()
    before = slept()
    net.forward()
    woken = [name for name, count in slept().items() if count > before.get(name, 0)]
    assert bool(woken) == wakes


@NEEDS_ONEDNN
@pytest.mark.parametrize("forward", [True, False])
def test_a_deconvolution_is_no_backward_pass(forward: bool) -> None:
    text = NET.replace('"c2" type: "Convolution"', '"c2" type: "Deconvolution"')
    if not forward:
        text += 'layer { name: "sum" type: "Reduction" bottom: "ip" top: "sum" loss_weight: 1 }'
    net = build(text, Cpu(threads=2), inference=forward, gradients=not forward)
    assert (
        OneDNN.analyze([call for calls in net.programs for call in calls]).only_forward == forward
    )


@NEEDS_ONEDNN
def test_maxima_of_a_net_that_never_runs_backward_are_noted_nowhere() -> None:
    """A pooling is prepared for one thread and then for all: a note of the first is in its way."""
    text = LARGER.replace("pool: AVE global_pooling: true", "kernel_size: 2")
    found = []
    for count in 1, 2:
        net = build(text, Cpu(threads=count))
        net.write("x", np.random.default_rng(0).standard_normal(net.read("x").shape))
        net.forward()
        found.append(net.read("p"))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-5)


def test_workers_are_left_alone_in_a_pass_on_one_thread() -> None:
    workers, ran = Workers(2), list[int]()
    tasks = [lambda: ran.append(threading.get_ident())] * 2
    workers.alone = True
    workers.run(tasks)
    assert set(ran) == {threading.get_ident()}
    workers.alone = False
    workers.run(tasks)
    assert len(set(ran)) == 2
