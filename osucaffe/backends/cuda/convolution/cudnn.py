"""cuDNN's candidates for a convolution: its plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...tensor import Run, Tensor
from ..call import Candidate, Context, Provider
from ..gpu import Gpu
from ..libraries.cudnn import CudnnError, Plan
from .cudnn_graph import UIDS, Convolution

WORKSPACE_ALIGNMENT = 256


class Cudnn(Provider):
    """cuDNN's plans for a convolution.

    make: makes the step that runs a plan for a call.
    """

    of_library = True

    def __init__(
        self,
        gpu: Gpu,
        name: str,
        convolution: Convolution,
        make: Callable[[Plan, Context], Run],
    ) -> None:
        self._plans = gpu.cudnn
        self._convolution = convolution
        self.name, self.make = name, make

    def build(self, ctx: Context) -> None:
        self._plans.search(self._convolution)

    def candidates(self) -> Iterable[Candidate]:
        for built in self._plans.search(self._convolution).result():
            yield self._candidate(built.name, built.plan)

    def first(self) -> Candidate | None:
        plans = self._plans.first(self._convolution).result()
        return self._candidate(plans[0].name, plans[0].plan) if plans else None

    def chosen(self, name: str) -> None:
        self._plans.keep(self._convolution, name)

    def build_named(self, ctx: Context, name: str) -> None:
        self._plans.named(self._convolution, name)

    def named(self, name: str) -> Candidate | None:
        try:
            return self._candidate(name, self._plans.named(self._convolution, name).result())
        except (CudnnError, ValueError):  # this cuDNN does not know it any more
            return None

    def _candidate(self, name: str, plan: Plan) -> Candidate:
        return Candidate(name, lambda ctx: self.make(plan, ctx))


def plan_step(ctx: Context, plan: Plan, tensors: dict[str, Tensor]) -> Run:
    """A step that runs the plan."""
    scratch = aligned_workspace(ctx, plan.workspace)
    handle = ctx.backend.cudnn.handle
    given: list[int] = []
    pack: Any = None

    def step() -> None:
        nonlocal given, pack
        now = [scratch(), *(tensor.address for tensor in tensors.values())]
        if now != given:  # once: tensors stay where they were placed
            addresses = {UIDS[name]: tensor.address for name, tensor in tensors.items()}
            given, pack = now, plan.bind(addresses, now[0])
        plan.execute(handle, pack)

    return step


def aligned_workspace(ctx: Context, nbytes: int) -> Callable[[], int]:
    """What gives the address of that many bytes of scratch, or 0 for none."""
    if not nbytes:
        return lambda: 0
    scratch = ctx.temporary((nbytes + WORKSPACE_ALIGNMENT,), "uint8")
    return lambda: -(-scratch.address // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
