"""Owns what convolutions and inner products end with on oneDNN: ReLU, ELU, PReLU."""

from __future__ import annotations

from ...formula import ELU
from ...tensor import Call, Tensor
from . import api
from .api import Descriptor, Library, PostOperation, Unsupported


class Ending:
    """What is applied to the result y of a primitive, which has these dimensions there.

    relu: the slope of a ReLU; activation: a call of another formula in place of it. Raises
    Unsupported where its slopes do not lie along the second axis.
    """

    def __init__(
        self,
        library: Library,
        dimensions: tuple[int, ...],
        relu: float | None,
        activation: Call | None,
    ) -> None:
        self.then: PostOperation | None = None
        self.slopes: tuple[Tensor, Descriptor] | None = None
        if relu is not None:
            self.then = ("eltwise", api.RELU, relu, 0.0)
        elif activation is not None and activation.settings["formula"] == ELU:
            self.then = ("eltwise", api.ELU, activation.settings["constants"]["alpha"], 0.0)
        elif activation is not None:
            _, slopes = activation.reads["inputs"]
            if len(slopes.shape) != len(dimensions) or slopes.count not in (1, dimensions[1]):
                raise Unsupported("slopes along another axis")
            self.slopes = slopes, library.plain(slopes.shape)
            self.then = ("prelu", 2 * (slopes.count > 1))

    def arguments(self, *, behind: bool = False) -> dict[int, tuple[Tensor, Descriptor]]:
        """What the primitive is given for it. behind: what lies in y is added before."""
        if self.slopes is None:
            return {}
        return {(1 + behind) * api.POST_OPERATION | api.WEIGHTS: self.slopes}
