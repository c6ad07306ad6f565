"""Owns the convolution in groups by packing: a group's channels are copied, so that they lie alone.

cuDNN may have faster kernels for whole tensors than for slices of the channels. Copies take the
time to read and write them; the bias, the ReLU and the mask come with the one that unpacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..tensor import Step, Tensor, sequence
from .cudnn_graph import Convolution, Operand
from .layout import channels_last
from .library import MOST_SLICES, bias_step, group_offsets, one_group, plan_steps
from .movement import copy_columns
from .registry import CudaCall
from .ways import BYTES_A_MILLISECOND, LAUNCH, Way, least_time, temporary

MOST_COPYING = 0.5
"""Of the time of the fastest other way, what copies may take: if more, no plan is searched for."""


def packed_ways(
    call: CudaCall,
    convolution: Convolution,
    tensors: dict[str, Tensor],
    group: int,
    others: Sequence[Way],
    *,
    bias: Tensor | None = None,
    relu: float | None = None,
    positive: Tensor | None = None,
) -> list[Way]:
    """At most one way to compute a convolution with what comes behind it.

    convolution: without that, of all groups; tensors: its operands by name. others: the other ways.
    bias, relu: of outputs; positive: what masks the gradients of images.
    """
    if not 1 < group <= MOST_SLICES:
        return []
    backend = call.backend
    copied = sum(2 * backend.nbytes(tensors[name]) for name in "xy")
    copied += 0 if positive is None else backend.nbytes(positive)
    copying = copied / BYTES_A_MILLISECOND + 2 * group * LAUNCH
    part = _packed(convolution, group)
    weights = group_offsets(part)["w"]
    if weights % 16 or copying > MOST_COPYING * least_time(others):
        return []
    found = backend.cudnn.plan(part)
    if found is None:
        return []
    build, taken = found

    def make() -> Step:
        packs = {"x": temporary(call, part.x.shape), "y": temporary(call, part.y.shape)}
        *read, _ = convolution.operands
        places = [{"w": i * weights} for i in range(group)]
        steps = []
        for i, run in enumerate(plan_steps(call, build(), {**tensors, **packs}, places)):
            # One group after another: the copies are smaller, and in the cache when they are read.
            steps += [_pack(tensors[name], packs[name], i) for name in packs if name in read]
            steps.append(run)
            if convolution.operation == "forward":
                y, pack = tensors["y"], packs["y"]
                steps.append(bias_step(y, bias, relu, y.shape[1], pack, i * pack.shape[1]))
            elif convolution.operation == "data":
                steps.append(_unpack(packs["x"], tensors["x"], i, positive))
        return sequence(steps)

    return [Way(group * taken + copying, make)]


def _packed(convolution: Convolution, group: int) -> Convolution:
    """The convolution of one of the groups, whose channels lie alone."""

    def alone(operand: Operand) -> Operand:
        return operand._replace(strides=channels_last(operand.shape))

    part = one_group(convolution, group)
    return replace(part, x=alone(part.x), y=alone(part.y))


def _pack(whole: Tensor, pack: Tensor, number: int) -> Step:
    """A step that copies the channels of the group of this number."""
    channels, width = whole.shape[1], pack.shape[1]
    return copy_columns(
        whole, pack, whole.size // channels, width,
        pitch=(channels, width), offset=(number * width, 0),
    )  # fmt: skip


def _unpack(pack: Tensor, whole: Tensor, number: int, positive: Tensor | None) -> Step:
    """A step that copies them back, as zeros where `positive` is not."""
    channels, width = whole.shape[1], pack.shape[1]
    return copy_columns(
        pack, whole, whole.size // channels, width, positive=positive,
        pitch=(width, channels), offset=(0, number * width),
    )  # fmt: skip
