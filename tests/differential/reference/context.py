"""Owns what the layers of a run of the reference share: rounding noise, states, and their table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from osucaffe.proto import caffe_pb2

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

LayerParameter = caffe_pb2.LayerParameter
Masks = Callable[[str, tuple[int, ...], int], np.ndarray]
"""Which elements a Dropout keeps, by its name, their shape and the number of the forward pass."""


class _Noise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, generator: torch.Generator) -> Tensor:
        ctx.eps, ctx.generator = eps, generator
        return x * (1 + eps * torch.randn(x.shape, generator=generator))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        noise = torch.randn(g.shape, generator=ctx.generator)
        return g * (1 + ctx.eps * noise), None, None


class Context:
    """What the layers of one run share.

    eps: of the noise; 0: exact. state: what lives on from one forward pass to the next, by layer.
    """

    def __init__(self, phase: str, masks: Masks, eps: float = 0.0, seed: int = 0) -> None:
        self.phase, self.masks, self.eps = phase, masks, eps
        self.generator = torch.Generator().manual_seed(seed)
        self.state: dict[str, Any] = {}
        self.step = 0

    def round(self, x: Tensor) -> Tensor:
        """The value as if it had been rounded, and so its gradient."""
        return _Noise.apply(x, self.eps, self.generator) if self.eps else x

    def slip(self, x: Tensor) -> Tensor:
        """0, with a gradient as wrong as rounding of a slope near 1 would make it."""
        if not self.eps:
            return torch.zeros(())
        return self.eps * torch.randn(x.shape, generator=self.generator) * (x - x.detach())

    def tanh(self, x: Tensor) -> Tensor:
        """Whose slope is computed from its value: where that is near 1 nothing is left of it."""
        return self.round(torch.tanh(x)) + self.slip(x)

    def sigmoid(self, x: Tensor) -> Tensor:
        """As Caffe has it, by tanh."""
        return 0.5 * self.tanh(0.5 * x) + 0.5


Function = Callable[[Context, LayerParameter, list[Tensor], list[Tensor]], "Tensor | list[Tensor]"]
LAYERS: dict[str, Function] = {}
NO_GRADIENT = frozenset(["Threshold", "ArgMax", "Accuracy"])


def layer(*types: str) -> Callable[[Function], Function]:
    """Make a function the definition of these layer types: tops from bottoms and parameters."""

    def decorate(function: Function) -> Function:
        LAYERS.update(dict.fromkeys(types, function))
        return function

    return decorate
