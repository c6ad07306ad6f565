"""On how many threads calls run: small ones on one, a small forward pass as it was faster."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cpu.onednn import threads
from osucaffe.backends.primitives import Program
from osucaffe.backends.tensor import Call, Step, Tensor
from tests.layers.nets import build

from .programs import NEEDS_ONEDNN


def telling(told: list[object], what: object) -> Step:
    return lambda: told.append(what)


def test_steps_on_one_thread_run_as_one() -> None:
    told: list[object] = []
    alone = [threads.on_one_thread(telling(told, each), told.append, 2) for each in "abc"]
    steps = threads.joined([*alone[:2], telling(told, "both"), alone[2]], told.append, 2)
    assert len(steps) == 3
    for step in steps:
        step()
    assert told == [1, "a", "b", 2, "both", 1, "c", 2]


class Clock:
    """Time that passes only as steps say."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def step(self, told: list[object], what: object, takes: Callable[[], float]) -> Step:
        def run() -> None:
            told.append(what)
            self.now += takes()

        return run


def test_what_was_faster_runs_until_both_are_tried_again() -> None:
    clock, told, both_take = Clock(), list[object](), 1.0
    both = clock.step(told, "both", lambda: both_take)
    run = threads.faster([both, clock.step(told, "one", lambda: 2.0)], clock)
    trial = ["both"] * threads.TRIED + ["one"] * threads.TRIED
    for both_take, chosen in ((1.0, "both"), (9.0, "one"), (1.0, "both")):
        told.clear()
        spent = threads.TRIED * (both_take + 2.0)
        kept = max(threads.KEPT, int(spent / (threads.LOST * min(both_take, 2.0))))
        for _ in range(len(trial) + kept):
            run()
        assert told == trial + [chosen] * kept


def test_what_has_become_slow_does_not_run_for_long() -> None:
    clock, told, both_take = Clock(), list[object](), 1.0
    both = clock.step(told, "both", lambda: both_take)
    run = threads.faster([both, clock.step(told, "one", lambda: 2.0)], clock)
    while told[-10:] != ["both"] * 10 or len(told) < 2 * threads.TRIED + 10:
        run()
    both_take = 9.0
    told.clear()
    for _ in range(threads.WATCHED * (threads.WATCHED + 1) + 2 * threads.TRIED):
        run()
    assert told[-1] == "one"


def test_the_first_tries_do_not_count() -> None:
    clock, told = Clock(), list[object]()
    times = iter([100.0] * (threads.TRIED // 2) + [1.0] * threads.TRIED)
    both = clock.step(told, "both", lambda: next(times, 1.0))
    run = threads.faster([both, clock.step(told, "one", lambda: 2.0)], clock)
    for _ in range(2 * threads.TRIED + 1):
        run()
    assert told[-1] == "both"


def test_a_program_runs_on_one_thread_where_all_of_it_can() -> None:
    told: list[object] = []
    small = threads.on_one_thread(telling(told, "small"), told.append, 2)
    large = threads.either(telling(told, "large"), telling(told, "large on one"))
    numpy = telling(told, "numpy")
    (step,) = threads.joined([small, large, numpy], told.append, 2)
    for _ in range(2 * threads.TRIED):
        step()
    assert told[:5] == [1, "small", 2, "large", "numpy"]
    assert told[-5:] == [1, "small", "large on one", "numpy", 2]
    large.alone = None  # type: ignore[attr-defined]

    def on_all() -> None:
        pass

    on_all.implementation = "jit"  # type: ignore[attr-defined]
    assert len(threads.joined([small, on_all], told.append, 2)) == 2


def call_of(record: Callable[[Program], None]) -> Call:
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


@NEEDS_ONEDNN
def test_a_small_net_gives_the_same_bits_on_one_thread_and_on_two() -> None:
    net = build(NET, Cpu(threads=2), inference=True)
    net.write("x", np.random.default_rng(0).standard_normal((1, 3, 20, 20)))
    found = []
    for _ in range(2 * threads.TRIED + 1):
        net.forward()
        found.append([net.read(name) for name in net.outputs])
    steps = {call.layer: step for call, step in net._build.steps[0]}
    assert [hasattr(steps[name], "alone") for name in ("c1", "c2", "ip")] == [True, True, False]
    for values in found[1:]:
        for value, first in zip(values, found[0], strict=True):
            np.testing.assert_array_equal(value, first)


@NEEDS_ONEDNN
def test_a_small_net_keeps_its_threads_where_an_activation_is_apart() -> None:
    text = (
        NET.replace("num_output: 30", "axis: 2 num_output: 30")
        + """
layer { name: "slopes" type: "PReLU" bottom: "ip" top: "slopes" }"""
    )
    net = build(text, Cpu(threads=2), inference=True)
    steps = {call.layer: step for call, step in net._build.steps[0]}
    assert hasattr(steps["ip"], "implementation")
    assert not hasattr(steps["ip"], "alone")
    onednn = net.backend.onednn
    assert len(onednn.joined([step for _, step in net._build.steps[0]])) > 1
