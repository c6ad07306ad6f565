"""The calls of an inner product that is divided among ranks ("one weird trick": Krizhevsky,
2014, arXiv 1404.5997).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .base import Layer, Program, Splitter, Tensor


class SplitProduct:
    """What an inner product records where it is divided: this rank computes its part of the
    outputs, with its part of the weights, for the rows of all ranks."""

    def __init__(self, layer: Layer, splitter: Splitter) -> None:
        self._layer, self._comm, self._blocks = layer, splitter.comm, splitter.blocks

    def forward(self, program: Program, x: Tensor, y: Tensor) -> None:
        """Gather the inputs of all rows, and swap outputs of others' rows for outputs of this
        rank's."""
        layer, rows = self._layer, self._comm.size * x.shape[0]
        weight, *biases = (self._own(parameter.data) for parameter in layer.parameters)
        bias = biases[0] if biases else None
        self._gathered = gathered = layer.tensor((rows, *x.shape[1:]))
        program.copy(x, self._own(gathered))
        self._together(program, gathered, self._comm.all_gather)
        both, made, came = self._swap_space(y)
        product = made.view((rows, weight.shape[0]))
        program.inner_product(gathered, weight, bias, product, axis=1, transpose=False)
        self._swap(program, both, made, came)
        program.permute(came, self._by_rank(y), axes=(1, 0, 2))

    def backward(self, program: Program, dy: Tensor, dx: Tensor | None) -> None:
        """Swap the gradients back; those of the parameters are complete then, those of the inputs a
        sum of all ranks'."""
        layer, gathered = self._layer, self._gathered
        weight = self._own(layer.parameters[0].data)
        dw, db = (diff and self._own(diff) for diff in (layer.gradient(0), layer.gradient(1)))
        both, given, came = self._swap_space(dy)
        program.permute(self._by_rank(dy), given, axes=(1, 0, 2))
        self._swap(program, both, given, came)
        product = came.view((gathered.shape[0], weight.shape[0]))
        settings: dict[str, Any] = {"axis": 1, "transpose": False}
        if dw is not None or db is not None:
            program.inner_product_backward_filter(gathered, product, dw, db, **settings)
        if dx is not None:
            total = layer.tensor(gathered.shape)
            program.inner_product_backward_data(product, weight, total, **settings)
            self._together(program, total, self._comm.reduce_scatter)
            program.copy(self._own(total), dx)

    def _own(self, tensor: Tensor) -> Tensor:
        """This rank's part, along the first axis."""
        shape = (tensor.shape[0] // self._comm.size, *tensor.shape[1:])
        return tensor.view(shape, self._comm.part(tensor.count)[0])

    def _by_rank(self, y: Tensor) -> Tensor:
        """The top with its outputs cut into the ranks' parts: rows x ranks x outputs."""
        return y.view((y.shape[0], self._comm.size, y.shape[1] // self._comm.size))

    def _swap_space(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Memory for an all-to-all, and its halves as ranks x rows x outputs: what this rank has
        for each of them, and what comes from each."""
        rows, ranks, outputs = self._by_rank(y).shape
        shape = (ranks, rows, outputs)
        both = self._layer.tensor((2, *shape))
        return both, both.view(shape), both.view(shape, y.count)

    def _swap(self, program: Program, both: Tensor, made: Tensor, came: Tensor) -> None:
        program.copy(self._own(made), self._own(came))
        self._together(program, both, self._comm.all_to_all)

    def _together(self, program: Program, tensor: Tensor, operation: Callable[..., Any]) -> None:
        program.collective(tensor, operation, self._blocks)
