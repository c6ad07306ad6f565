"""The memory plan: tensors that live at one time never overlap, and others share."""

from itertools import pairwise

import numpy as np

from osucaffe.backends.primitives.formulas import Sum
from osucaffe.backends.primitives.movement import Copy, Host
from osucaffe.backends.primitives.recording import Primitive
from osucaffe.backends.tensor import Tensor
from osucaffe.graph.passes.memory import plan_memory


def chain(count: int, size: int = 1000) -> list[Primitive]:
    tensors = [Tensor((size,), name=str(i)) for i in range(count + 1)]
    tensors[0].persistent = True
    return [Copy(a, b) for a, b in pairwise(tensors)]


def bytes_of(tensor: Tensor) -> int:
    return tensor.size * 4


def test_a_chain_needs_two_buffers():
    plan = plan_memory(chain(10), bytes_of)
    assert plan.size == 2 * 4096  # 4,000 bytes each, rounded up
    assert plan.unshared == 10 * 4096
    assert len(plan.persistent) == 1


def test_no_two_living_tensors_overlap():
    random = np.random.default_rng(1)
    tensors = [Tensor((int(random.integers(1, 500)),), name=str(i)) for i in range(60)]
    calls = [Copy(tensors[random.integers(0, max(1, i))], tensors[i]) for i in range(60)]
    calls[7].temporary((333,))
    plan = plan_memory(calls, bytes_of)
    life: dict[int, list[int]] = {}
    for time, call in enumerate(calls):
        for tensor in (*call.read_tensors(), *call.written_tensors(), *call.scratch):
            life.setdefault(id(tensor), []).append(time)
    placed = [
        (offset, offset + bytes_of(tensor), min(life[id(tensor)]), max(life[id(tensor)]))
        for tensor, offset in plan.offsets
    ]
    assert len(placed) == 61
    for i, (start, end, first, last) in enumerate(placed):
        for other_start, other_end, other_first, other_last in placed[:i]:
            together = first <= other_last and other_first <= last
            assert not together or end <= other_start or other_end <= start
    assert plan.size < plan.unshared / 2


def test_fed_and_placed_tensors_are_left_alone():
    fed, placed, result = Tensor((8,)), Tensor((8,)), Tensor((8,))
    placed.place(np.zeros(8, np.float32), 0)
    calls = [
        Host([], [fed], lambda: None, feed=True),
        Sum([fed, placed], result),
    ]
    plan = plan_memory(calls, bytes_of)
    assert [tensor for tensor, _ in plan.offsets] == [result]
