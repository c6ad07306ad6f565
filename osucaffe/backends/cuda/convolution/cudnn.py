"""Owns cuDNN's candidates for a convolution, and the steps that run its plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...tensor import Step, Tensor
from ..call import Candidate, CudaCall, Provider
from ..gpu import Gpu
from ..libraries.cudnn import CudnnError, Plan
from .cudnn_graph import UIDS, Convolution

WORKSPACE_ALIGNMENT = 256


class Cudnn(Provider):
    """cuDNN's plans for a convolution.

    make: makes the step that runs a plan for a call.
    """

    def __init__(
        self,
        gpu: Gpu,
        name: str,
        convolution: Convolution,
        make: Callable[[Plan, CudaCall], Step],
    ) -> None:
        self._plans = gpu.cudnn
        self._convolution = convolution
        self.name, self.make = name, make

    def build(self, call: CudaCall) -> None:
        self._plans.search(self._convolution)

    def candidates(self) -> Iterable[Candidate]:
        for found in self._plans.search(self._convolution).result():
            yield self._candidate(found.name, found.plan)

    def chosen(self, name: str) -> None:
        self._plans.keep(self._convolution, name)

    def build_named(self, call: CudaCall, name: str) -> None:
        self._plans.named(self._convolution, name)

    def named(self, name: str) -> Candidate | None:
        try:
            return self._candidate(name, self._plans.named(self._convolution, name).result())
        except (CudnnError, ValueError):  # this cuDNN does not know it any more
            return None

    def _candidate(self, name: str, plan: Plan) -> Candidate:
        return Candidate(name, lambda call: self.make(plan, call))


def plan_step(call: CudaCall, plan: Plan, tensors: dict[str, Tensor]) -> Step:
    """A step that runs the plan."""
    [step] = plan_steps(call, plan, tensors, [{}])
    return step


def plan_steps(
    call: CudaCall, plan: Plan, tensors: dict[str, Tensor], places: Sequence[dict[str, int]]
) -> list[Step]:
    """A step for each of the places (offsets in bytes from the tensors); they share scratch memory,
    so one runs after another."""
    scratch = aligned_workspace(call, plan.workspace)
    handle = call.backend.cudnn.handle

    def run(place: dict[str, int]) -> Step:
        uids = [UIDS[name] for name in tensors]
        operands = [(tensor, place.get(name, 0)) for name, tensor in tensors.items()]
        given: list[int] = []
        pack: Any = None

        def step() -> None:
            nonlocal given, pack
            now = [scratch(), *[tensor.address + offset for tensor, offset in operands]]
            if now != given:  # once: tensors stay where they were placed
                given, pack = now, plan.bind(dict(zip(uids, now[1:], strict=True)), now[0])
            plan.execute(handle, pack)

        return step

    return [run(place) for place in places]


def aligned_workspace(call: CudaCall, nbytes: int) -> Callable[[], int]:
    """What gives the address of so many bytes of scratch, or 0 if none are wanted."""
    if not nbytes:
        return lambda: 0
    scratch = call.temporary((nbytes + WORKSPACE_ALIGNMENT,), "uint8")
    return lambda: -(-scratch.address // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
