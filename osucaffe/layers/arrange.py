"""Owns the layers that arrange data without computing: Concat, Split, Silence."""

from __future__ import annotations

from ..backends.primitives import Program
from ..backends.tensor import Shape
from ..blob import Blob
from ..layer import Layer, register


@register("Split")
class Split(Layer):
    """Several names for one blob, whose gradients are added (inserted where a blob is shared)."""

    tops = (1, None)
    alias = ("data",)

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        return bottom * len(self.param.top)

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        if propagate_down[0]:
            program.sum([each.diff for each in top], bottom[0].diff)


@register("Silence")
class Silence(Layer):
    """Takes blobs that nobody wants, so that they are not outputs of the net."""

    bottoms = (1, None)
    tops = (0, 0)

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        return []

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        for blob, wanted in zip(bottom, propagate_down, strict=True):
            if wanted:
                program.fill(blob.diff, value=0.0)


@register("Concat")
class Concat(Layer):
    """Put blobs behind one another along an axis."""

    bottoms = (1, None)

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        param = self.param.concat_param
        field, axis = "concat_param.axis", param.axis
        if param.HasField("concat_dim"):
            if param.HasField("axis"):
                self.fail(field, "stands beside concat_dim: give one or the other")
            field, axis = "concat_param.concat_dim", param.concat_dim
        self.axis_index = axis = self.axis(axis, len(bottom[0]), field)
        for i, shape in enumerate(bottom):
            others = shape[:axis] + shape[axis + 1 :]
            if len(shape) != len(bottom[0]) or others != bottom[0][:axis] + bottom[0][axis + 1 :]:
                self.fail(
                    f"bottom[{i}]",
                    f"has shape {shape}, bottom[0] has {bottom[0]}: they may differ in axis "
                    f"{axis} only",
                )
        whole = sum(shape[axis] for shape in bottom)
        return [(*bottom[0][:axis], whole, *bottom[0][axis + 1 :])]

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
        program.concat([blob.data for blob in bottom], top[0].data, axis=self.axis_index)

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        if any(propagate_down):
            parts = [
                blob.diff if wanted else None
                for blob, wanted in zip(bottom, propagate_down, strict=True)
            ]
            program.split(top[0].diff, parts, axis=self.axis_index)
