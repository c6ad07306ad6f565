"""Owns the convolution in groups by packing: a group's channels are copied, so that they lie alone.

cuDNN has faster kernels for whole tensors than for groups. Copies take the time to read and write
them; the bias, the ReLU and the mask come with the one that unpacks.
"""

from __future__ import annotations

from ...tensor import Step, Tensor, sequence
from ..call import CudaCall
from ..libraries.cudnn import Plan
from ..passes.convert import copy_columns
from .cudnn import Cudnn, plan_steps
from .cudnn_graph import Convolution
from .operands import bias_step, bind, temporary

MOST_GROUPS = 8
"""Up to so many, each may get a convolution of its own."""
MOST_COPYING = 0.5
"""Of the time of the fastest other candidate, what copies may take: if more, cuDNN is not asked."""
LAUNCH = 0.002
"""Milliseconds that a kernel takes at least."""


class PackedGroups(Cudnn):
    """cuDNN on copies of each group's channels.

    part: the convolution of one group, alone; the bias and ReLU of the call, or its mask, come with
    copies.
    """

    def __init__(self, call: CudaCall, part: Convolution, group: int) -> None:
        x, y = part.x.nbytes * group, part.y.nbytes * group
        copied = 2 * (x + y) + (x if call["relu_output"] is not None else 0)
        copying = copied / call.backend.properties.copies_a_millisecond + 2 * group * LAUNCH
        self._group = group
        super().__init__(call.backend, "cudnn on packed groups", part, self._step)
        self.unless = copying / MOST_COPYING

    def _step(self, plan: Plan, call: CudaCall) -> Step:
        part, operation = self._convolution, self._convolution.operation
        # What follows outputs and gradients of images comes with the copies.
        bound, behind = bind(call, fused=operation != "filter")
        tensors = {name: bound[name] for name in "xwy"}
        packs = {"x": temporary(call, part.x.shape), "y": temporary(call, part.y.shape)}
        *read, _ = part.operands
        places = [{"w": i * part.w.nbytes} for i in range(self._group)]
        steps = []
        for i, run in enumerate(plan_steps(call, plan, {**tensors, **packs}, places)):
            # One group after another: the copies are smaller, and in the cache when they are read.
            steps += [_pack(tensors[name], packs[name], i) for name in packs if name in read]
            steps.append(run)
            if operation == "forward":
                y, pack = tensors["y"], packs["y"]
                relu = call.settings.get("relu")
                first = i * pack.shape[1]
                steps.append(bias_step(y, call["b"], relu, y.shape[1], pack, first))
            elif operation == "data":
                steps.append(_unpack(packs["x"], tensors["x"], i, bound.get("mask")))
        return sequence([*steps, *behind])


def _pack(whole: Tensor, pack: Tensor, number: int) -> Step:
    """A step that copies the channels of the group of this number."""
    channels, width = whole.shape[1], pack.shape[1]
    pitch, offset = (channels, width), (number * width, 0)
    return copy_columns(whole, pack, whole.size // channels, width, pitch=pitch, offset=offset)


def _unpack(pack: Tensor, whole: Tensor, number: int, relu_output: Tensor | None) -> Step:
    """A step that copies them back, as zeros where `relu_output` is not positive."""
    channels, width = whole.shape[1], pack.shape[1]
    return copy_columns(
        pack, whole, whole.size // channels, width, relu_output=relu_output,
        pitch=(width, channels), offset=(0, number * width),
    )  # fmt: skip
