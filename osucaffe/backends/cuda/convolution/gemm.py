"""Owns matrix products by cuBLASLt as candidates: of inner products, and of convolutions that
visit every pixel with a 1 x 1 kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...tensor import Step, Tensor, sequence
from ..autotune.candidate import Candidate, Provider
from ..libraries.cublaslt import Algorithm, Library, Product, proposals
from ..runtime.background import Task, begin
from .cudnn import aligned_workspace

if TYPE_CHECKING:
    from ..backend import Cuda
    from ..registry import CudaCall


class Bound(NamedTuple):
    """The operands of a product (see `Product`; bias: a parameter), and the steps behind it."""

    a: Tensor
    b: Tensor
    c: Tensor
    bias: Tensor | None
    behind: Sequence[Step]


class Products:
    """What cuBLASLt proposes for products on a backend's device, each asked for once."""

    def __init__(self, backend: Cuda) -> None:
        self._backend = backend
        self.library = Library()
        self._proposed: dict[Product, Task[list[str]]] = {}

    def proposed(self, product: Product) -> Task[list[str]]:
        """The names of the algorithms that it proposes."""
        if product not in self._proposed:
            self._proposed[product] = begin(functools.partial(self._on_a_thread, product))
        return self._proposed[product]

    def algorithm(self, product: Product, name: str) -> Algorithm:
        """The algorithm of a name, for a product."""
        return Algorithm(self.library, product, name)

    def _on_a_thread(self, product: Product) -> list[str]:
        self._backend.device.use()
        return proposals(self.library, product)


class Gemm(Provider):
    """cuBLASLt's algorithms for a product. bind: gives the operands of a call."""

    name = "cublaslt"

    def __init__(self, backend: Cuda, product: Product, bind: Callable[[CudaCall], Bound]) -> None:
        self._backend = backend
        self._product = product
        self._bind = bind

    def build(self, call: CudaCall) -> None:
        self._backend.products.proposed(self._product)

    def candidates(self) -> Iterable[Candidate]:
        return map(self.named, self._backend.products.proposed(self._product).result())

    def build_named(self, call: CudaCall, name: str) -> None:
        """There is nothing to be built."""

    def named(self, name: str) -> Candidate:
        return Candidate(name, lambda call: self._step(call, name))

    def _step(self, call: CudaCall, name: str) -> Step:
        backend = self._backend
        algorithm = backend.products.algorithm(self._product, name)
        a, b, c, bias, behind = self._bind(call)
        scratch = aligned_workspace(call, algorithm.workspace)
        # The bias has to be of the output's type.
        short = call.low_precision(bias) if bias is not None else None

        def step() -> None:
            algorithm.execute(
                a.address, b.address, c.address, short.address if short else 0, scratch(),
                backend.current.ptr,
            )  # fmt: skip

        return sequence([step, *behind])
