"""Owns windows over any number of spatial axes, in row-major float32: general pooling, im2col."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...primitives.pooling import PoolingWindow, StochasticPooling
from ...primitives.products import Im2col, Im2colBackward, Unfolding
from ...tensor import Step, Tensor
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch


def _list(values: Sequence[int]) -> str:
    return "{" + ",".join(str(int(value)) for value in values) + "}"


class Windows:
    """Windows over `large` (N, C, *in), one for each position of `small` (N, C, *out)."""

    def __init__(
        self,
        call: CudaCall,
        large: Tensor,
        small: Tensor,
        a: PoolingWindow | StochasticPooling | Unfolding,
    ) -> None:
        call.choose_layouts(large, small)
        self.call = call
        self.large = call.in_layout(large, nhwc=False, dtype="float32")
        self.small = call.in_layout(small, nhwc=False, dtype="float32")
        self.macros = {
            "AXES": len(a.kernel),
            "IN": _list(large.shape[2:]),
            "OUT": _list(small.shape[2:]),
            "KERNEL": _list(a.kernel),
            "STRIDE": _list(a.stride),
            "PAD": _list(a.pad),
            "DILATION": _list(a.dilation if isinstance(a, Unfolding) else [1] * len(a.kernel)),
            "INS": math.prod(large.shape[2:]),
            "OUTS": math.prod(small.shape[2:]),
            "TAPS": math.prod(a.kernel),
        }

    def over_small(self, name: str, *others: Any) -> Step:
        """A step that launches a kernel with a thread for each element of `small`."""
        return self._launch(name, self.small, others)

    def over_large(self, name: str, *others: Any) -> Step:
        """A step that launches a kernel with a thread for each element of `large`."""
        return self._launch(name, self.large, others)

    def _launch(self, name: str, over: Tensor, others: Sequence[Any]) -> Step:
        # Whatever else there is, such as an index, lies row-major, in the type that it is declared.
        row_major = [
            self.call.in_layout(other, nhwc=False, dtype=other.dtype)
            if isinstance(other, Tensor)
            else other
            for other in others
        ]
        function = kernel("windows", name, COUNT=f"{over.count}ll", **self.macros)
        return launch(function, blocks_for(over.count), [self.large, self.small, *row_major])


@primitive("own")
def im2col(call: CudaCall, a: Im2col) -> Step:
    return Windows(call, a.x, a.y, a).over_small("im2col")


@primitive("own")
def im2col_backward(call: CudaCall, a: Im2colBackward) -> Step:
    return Windows(call, a.dx, a.dy, a).over_large("im2col_backward")
