"""Matrix products by cuBLASLt as candidates: of inner products, and of convolutions that
visit every pixel with a 1 x 1 kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...tensor import Run, Tensor, sequence
from ..call import Candidate, Context, Provider
from ..gpu import Gpu
from ..libraries.cublaslt import Product
from .cudnn import aligned_workspace


class Bound(NamedTuple):
    """The operands of a product (see `Product`; bias: a parameter), and the steps after it."""

    a: Tensor
    b: Tensor
    c: Tensor
    bias: Tensor | None
    behind: Sequence[Run]


class Gemm(Provider):
    """cuBLASLt's algorithms for a product. bind: gives the operands of a call."""

    of_library = True

    def __init__(
        self, gpu: Gpu, product: Product, bind: Callable[[Context], Bound], name: str = "cublaslt"
    ) -> None:
        self.name, self._products = name, gpu.products
        self._product = product
        self._bind = bind

    def build(self, ctx: Context) -> None:
        self._products.proposed(self._product)

    def candidates(self) -> Iterable[Candidate]:
        return map(self.named, self._products.proposed(self._product).result())

    def build_named(self, ctx: Context, name: str) -> None:
        """There is nothing to be built."""

    def named(self, name: str) -> Candidate:
        return Candidate(name, lambda ctx: self._step(ctx, name))

    def _step(self, ctx: Context, name: str) -> Run:
        backend = ctx.backend
        algorithm = self._products.algorithm(self._product, name)
        a, b, c, bias, behind = self._bind(ctx)
        scratch = aligned_workspace(ctx, algorithm.workspace)
        # The bias has to be of the output's type.
        short = ctx.low_precision(bias) if bias is not None else None

        def step() -> None:
            algorithm.execute(
                a.address, b.address, c.address, short.address if short else 0, scratch(),
                backend.current.ptr,
            )  # fmt: skip

        return sequence([step, *behind])
