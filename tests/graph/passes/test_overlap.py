"""Which calls run beside which: gradients of parameters beside what does not need them."""

from __future__ import annotations

import pytest

from osucaffe.backends.primitives.recording import Primitive, Reads, Writes
from osucaffe.backends.tensor import Tensor
from osucaffe.graph.passes.memory import plan_memory
from osucaffe.graph.passes.overlap import SPARE, overlap_calls


class Other(Primitive, abstract=True):
    """A call that runs in its turn."""

    xs: Reads
    ys: Writes


class Filter(Other, abstract=True):
    """One that may overlap others."""


KINDS = (Filter,)


def test_they_end_before_what_depends_on_them() -> None:
    x, dy, dw, dx, other = (Tensor((4,)) for _ in range(5))
    for last, beside in [
        (Other([dw], [other]), 1),  # it reads what they write
        (Other([other], [dy]), 1),  # it writes what they read
        (Other([dy], [other]), 2),
        (Filter([x, other], [dw]), 1),  # it adds to what they write, in its turn
    ]:
        calls = [Filter([x, dy], [dw]), Other([dy], [dx]), last]
        overlap_calls(calls, KINDS, lambda tensor: 4)
        assert calls[0].overlap == beside


def test_one_of_them_that_runs_beside_others_comes_behind_in_any_case() -> None:
    x, dy, dw, dx, later = (Tensor((4,)) for _ in range(5))
    calls = [
        Filter([x, dy], [dw]), Other([dy], [dx]), Filter([x, dx], [dw]),
        Other([dx], [later]),
    ]  # fmt: skip
    overlap_calls(calls, KINDS, lambda tensor: 4)
    assert [each.overlap for each in calls] == [3, 0, 1, 0]


def test_one_of_them_that_memory_has_run_in_its_turn_waits_for_those_before() -> None:
    x, big, dy, dw, dx, later, last = (Tensor((4,)) for _ in range(7))
    sizes = {id(big): 3 * SPARE, id(last): 3 * SPARE}
    calls = [
        Filter([x, dy], [dw]), Other([dy], [dx]), Filter([big, dx], [dw]),
        Other([dx], [last]), Other([last], [later]),
    ]  # fmt: skip
    overlap_calls(calls, KINDS, lambda tensor: sizes.get(id(tensor), 0))
    assert [each.overlap for each in calls] == [1, 0, 0, 0, 0]


def backward(filters: int) -> list[Primitive]:
    """So many gradients of weights, each with that of the data."""
    tensors = [Tensor((4,)) for _ in range(2 * filters + 1)]
    calls = []
    for index in range(filters):
        calls.append(Filter([tensors[index]], [tensors[filters + 1 + index]]))
        calls.append(Other([tensors[index]], [tensors[index + 1]]))
    return calls


def test_only_a_few_run_at_a_time() -> None:
    calls = backward(4)
    overlap_calls(calls, KINDS, lambda tensor: 4)
    assert [each.overlap for each in calls] == [3, 0, 3, 0, 3, 0, 1, 0]


@pytest.mark.parametrize(("filters", "forks"), [(8, 8), (24, 24), (25, 7), (54, 8), (64, 8)])
def test_many_begin_in_groups_as_forks_hold_up_other_streams(filters: int, forks: int) -> None:
    calls = backward(filters)
    overlap_calls(calls, KINDS, lambda tensor: 4)
    assert sum(not each.launch_with_next for each in calls if isinstance(each, Filter)) == forks
    assert not any(each.launch_with_next for each in calls if not isinstance(each, Filter))
    group = -(-filters // forks)
    held = [each.launch_with_next for each in calls if isinstance(each, Filter)]
    assert held[:group] == [True] * (group - 1) + [False]


def test_none_is_held_beyond_its_end() -> None:
    calls = backward(40)
    last = calls[2]
    for each in (1, 5):  # these need what the first and the third gradient give
        calls[each].xs.append(calls[each - 1].ys[0])
    overlap_calls(calls, KINDS, lambda tensor: 4)
    assert [each.overlap > 0 for each in calls[:6:2]] == [False, True, False]
    held: list[tuple[int, int]] = []
    for index, each in enumerate(calls):
        if each.overlap:
            held.append((index, index + each.overlap))
            if not each.launch_with_next:
                assert all(index <= end for _, end in held)
                held.clear()
    assert not held
    assert last.launch_with_next


def test_their_operands_stay_in_memory() -> None:
    kept, dy, dx, later = (Tensor((64,)) for _ in range(4))
    kept.persistent = True
    for beside, shared in (0, True), (2, False):
        calls = [
            Filter([dy], [kept]), Other([kept], [dx]), Other([dx], [later]),
        ]  # fmt: skip
        calls[0].overlap = beside
        plan = plan_memory(calls, lambda tensor: 256)
        offsets = {id(tensor): offset for tensor, offset in plan.offsets}
        assert (offsets[id(dy)] in (offsets[id(dx)], offsets[id(later)])) == shared


def test_they_take_little_more_memory_than_is_needed_in_any_case() -> None:
    x, dy, dw, dx, later, last = (Tensor((4,)) for _ in range(6))
    for size_of_last, beside in (0, 3), (1, 3), (2, 2):  # beside 4 that are needed at the start
        sizes = {id(x): 2 * SPARE, id(dy): 2 * SPARE, id(last): size_of_last * SPARE}
        calls = [
            Filter([x, dy], [dw]), Other([dy], [dx]), Other([dx], [later]),
            Other([later], [last]),
        ]  # fmt: skip
        overlap_calls(calls, KINDS, lambda tensor, sizes=sizes: sizes.get(id(tensor), 0))
        assert calls[0].overlap == beside
