"""Which calls run beside which: gradients of parameters beside what does not need them."""

from __future__ import annotations

import pytest

from osucaffe.backends.tensor import Call, Tensor
from osucaffe.graph.passes.memory import plan_memory
from osucaffe.graph.passes.overlap import SPARE, overlap_calls

NAMES = {"filter"}


def call(name: str, reads: list[Tensor], writes: list[Tensor]) -> Call:
    return Call(name, {"xs": reads}, {"ys": writes}, {})


def test_they_end_before_what_depends_on_them() -> None:
    x, dy, dw, dx, other = (Tensor((4,)) for _ in range(5))
    for last, beside in [
        (call("sum", [dw], [other]), 1),  # it reads what they write
        (call("sum", [other], [dy]), 1),  # it writes what they read
        (call("sum", [dy], [other]), 2),
        (call("filter", [x, other], [dw]), 1),  # it adds to what they write, in its turn
    ]:
        calls = [call("filter", [x, dy], [dw]), call("data", [dy], [dx]), last]
        overlap_calls(calls, NAMES, lambda tensor: 4)
        assert calls[0].overlap == beside


def test_one_of_them_that_runs_beside_others_comes_behind_in_any_case() -> None:
    x, dy, dw, dx, later = (Tensor((4,)) for _ in range(5))
    calls = [
        call("filter", [x, dy], [dw]), call("data", [dy], [dx]), call("filter", [x, dx], [dw]),
        call("data", [dx], [later]),
    ]  # fmt: skip
    overlap_calls(calls, NAMES, lambda tensor: 4)
    assert [each.overlap for each in calls] == [3, 0, 1, 0]


def test_one_of_them_that_memory_has_run_in_its_turn_waits_for_those_before() -> None:
    x, big, dy, dw, dx, later, last = (Tensor((4,)) for _ in range(7))
    sizes = {id(big): 3 * SPARE, id(last): 3 * SPARE}
    calls = [
        call("filter", [x, dy], [dw]), call("data", [dy], [dx]), call("filter", [big, dx], [dw]),
        call("data", [dx], [last]), call("data", [last], [later]),
    ]  # fmt: skip
    overlap_calls(calls, NAMES, lambda tensor: sizes.get(id(tensor), 0))
    assert [each.overlap for each in calls] == [1, 0, 0, 0, 0]


def backward(filters: int) -> list[Call]:
    """So many gradients of weights, each with that of the data."""
    tensors = [Tensor((4,)) for _ in range(2 * filters + 1)]
    calls = []
    for index in range(filters):
        calls.append(call("filter", [tensors[index]], [tensors[filters + 1 + index]]))
        calls.append(call("data", [tensors[index]], [tensors[index + 1]]))
    return calls


def test_only_a_few_run_at_a_time() -> None:
    calls = backward(4)
    overlap_calls(calls, NAMES, lambda tensor: 4)
    assert [each.overlap for each in calls] == [3, 0, 3, 0, 3, 0, 1, 0]


@pytest.mark.parametrize(("filters", "forks"), [(8, 8), (24, 24), (25, 7), (54, 8), (64, 8)])
def test_many_begin_in_groups_as_forks_hold_up_other_streams(filters: int, forks: int) -> None:
    calls = backward(filters)
    overlap_calls(calls, NAMES, lambda tensor: 4)
    assert sum(not each.held for each in calls if each.name == "filter") == forks
    assert not any(each.held for each in calls if each.name == "data")
    group = -(-filters // forks)
    held = [each.held for each in calls if each.name == "filter"]
    assert held[:group] == [True] * (group - 1) + [False]


def test_none_is_held_beyond_its_end() -> None:
    calls = backward(40)
    last = calls[2]
    for each in (1, 5):  # these need what the first and the third gradient give
        calls[each].reads["xs"].append(calls[each - 1].writes["ys"][0])
    overlap_calls(calls, NAMES, lambda tensor: 4)
    assert [each.overlap > 0 for each in calls[:6:2]] == [False, True, False]
    held: list[tuple[int, int]] = []
    for index, each in enumerate(calls):
        if each.overlap:
            held.append((index, index + each.overlap))
            if not each.held:
                assert all(index <= end for _, end in held)
                held.clear()
    assert not held
    assert last.held


def test_their_operands_stay_in_memory() -> None:
    kept, dy, dx, later = (Tensor((64,)) for _ in range(4))
    kept.persistent = True
    for beside, shared in (0, True), (2, False):
        calls = [
            call("filter", [dy], [kept]), call("data", [kept], [dx]), call("data", [dx], [later]),
        ]  # fmt: skip
        calls[0].overlap = beside
        plan = plan_memory([calls], lambda tensor: 256, share=True)
        offsets = {id(tensor): offset for tensor, offset in plan.offsets}
        assert (offsets[id(dy)] in (offsets[id(dx)], offsets[id(later)])) == shared


def test_they_take_little_more_memory_than_is_needed_in_any_case() -> None:
    x, dy, dw, dx, later, last = (Tensor((4,)) for _ in range(6))
    for size_of_last, beside in (0, 3), (1, 3), (2, 2):  # beside 4 that are needed at the start
        sizes = {id(x): 2 * SPARE, id(dy): 2 * SPARE, id(last): size_of_last * SPARE}
        calls = [
            call("filter", [x, dy], [dw]), call("data", [dy], [dx]), call("data", [dx], [later]),
            call("data", [later], [last]),
        ]  # fmt: skip
        overlap_calls(calls, NAMES, lambda tensor, sizes=sizes: sizes.get(id(tensor), 0))
        assert calls[0].overlap == beside
