"""Owns cuDNN's candidates for a convolution: its plans, on whole tensors or on packed groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...tensor import Run, Tensor, sequence
from ..call import Candidate, Context, Provider
from ..gpu import Gpu
from ..libraries.cudnn import CudnnError, Plan
from ..passes.convert import copy_columns
from .cudnn_graph import UIDS, Convolution
from .operands import bias_step, bind, temporary

WORKSPACE_ALIGNMENT = 256
MOST_GROUPS = 8
"""Up to so many groups, each may get a convolution of its own."""
MOST_COPYING = 0.5
"""Of the time of the fastest other candidate, what copies may take: if more, cuDNN is not asked for
packed groups."""
LAUNCH = 0.002
"""Milliseconds that a kernel takes at least."""


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
    [step] = plan_steps(ctx, plan, tensors, [{}])
    return step


def plan_steps(
    ctx: Context, plan: Plan, tensors: dict[str, Tensor], places: Sequence[dict[str, int]]
) -> list[Run]:
    """A step for each of the places (offsets in bytes from the tensors); they share scratch memory,
    so one runs after another."""
    scratch = aligned_workspace(ctx, plan.workspace)
    handle = ctx.backend.cudnn.handle

    def run(place: dict[str, int]) -> Run:
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


def aligned_workspace(ctx: Context, nbytes: int) -> Callable[[], int]:
    """What gives the address of so many bytes of scratch, or 0 for none."""
    if not nbytes:
        return lambda: 0
    scratch = ctx.temporary((nbytes + WORKSPACE_ALIGNMENT,), "uint8")
    return lambda: -(-scratch.address // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


class PackedGroups(Cudnn):
    """cuDNN on packed groups: a group's channels are copied, so that they lie alone.

    It has faster kernels for whole tensors than for groups. Copies take the time to read and write
    them; the bias, the ReLU and the mask come with the one that unpacks. part: the convolution of
    one group, alone.
    """

    def __init__(self, ctx: Context, part: Convolution, group: int) -> None:
        x, y = part.x.nbytes * group, part.y.nbytes * group
        masked = getattr(ctx.call, "relu_output", None) is not None
        copied = 2 * (x + y) + x * masked
        copying = copied / ctx.backend.properties.copies_a_millisecond + 2 * group * LAUNCH
        self._group = group
        super().__init__(ctx.backend, "cudnn on packed groups", part, self._step)
        self.unless = copying / MOST_COPYING

    def _step(self, plan: Plan, ctx: Context) -> Run:
        part, operation = self._convolution, self._convolution.operation
        # What follows outputs and gradients of images comes with the copies.
        bound, behind = bind(ctx, fused=operation != "filter")
        tensors = {name: bound[name] for name in "xwy"}
        packs = {"x": temporary(ctx, part.x.shape), "y": temporary(ctx, part.y.shape)}
        *read, _ = part.operands
        places = [{"w": i * part.w.nbytes} for i in range(self._group)]
        steps = []
        for i, run in enumerate(plan_steps(ctx, plan, {**tensors, **packs}, places)):
            # One group after another: the copies are smaller, and in the cache when they are read.
            steps += [_pack(tensors[name], packs[name], i) for name in packs if name in read]
            steps.append(run)
            if operation == "forward":
                y, pack = tensors["y"], packs["y"]
                first = i * pack.shape[1]
                steps.append(bias_step(y, ctx.call.b, ctx.call.relu, y.shape[1], pack, first))
            elif operation == "data":
                steps.append(_unpack(packs["x"], tensors["x"], i, bound.get("mask")))
        return sequence([*steps, *behind])


def _pack(blob: Tensor, pack: Tensor, number: int) -> Run:
    """A step that copies the channels of the group of this number."""
    channels, width = blob.shape[1], pack.shape[1]
    pitch, offset = (channels, width), (number * width, 0)
    return copy_columns(blob, pack, blob.size // channels, width, pitch=pitch, offset=offset)


def _unpack(pack: Tensor, blob: Tensor, number: int, relu_output: Tensor | None) -> Run:
    """A step that copies them back, as zeros where `relu_output` is not positive."""
    channels, width = blob.shape[1], pack.shape[1]
    return copy_columns(
        pack, blob, blob.size // channels, width, relu_output=relu_output,
        pitch=(width, channels), offset=(0, number * width),
    )  # fmt: skip
