"""Gradients of low rank: PowerSGD."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ...arena import Parameter
from ...backends.tensor import Tensor
from ...comm.algorithms import Operation
from ...comm.communicator import Communicator
from ...parallel.buckets import Bucket, Layout, NetLayout
from ...parallel.hook import ErrorFeedback


class Matrix(NamedTuple):
    """Elements start .. stop - 1 of the arena, as a matrix of that many rows.

    order: where the matrix's elements lie in these, row by row, if not in their order.
    """

    start: int
    stop: int
    rows: int
    order: Any = None

    def take(self, values: Any, bucket: Bucket) -> Any:
        """The matrix, in the elements of its bucket."""
        part = self.part(values, bucket)
        return (part if self.order is None else part[self.order]).reshape(self.rows, -1)

    def put(self, matrix: Any, values: Any, bucket: Bucket) -> None:
        """The reverse."""
        self.part(values, bucket)[slice(None) if self.order is None else self.order] = (
            matrix.ravel()
        )

    def part(self, values: Any, bucket: Bucket) -> Any:
        """What lies in these elements, padding included."""
        return values[self.start - bucket.start : self.stop - bucket.start]


def read_rank(text: str) -> int:
    """A rank of 1 or more. ValueError."""
    if (rank := int(text)) < 1:
        raise ValueError(text)
    return rank


def matrices(net: Layout, rank: int) -> Iterator[tuple[int, Parameter, int]]:
    """The parameters that matrices of this rank make smaller: where each lies, and its rows."""
    for start, _, parameter in net.arena.segments:
        data = parameter.blob.data
        rows = data.shape[0] if data.shape else 1
        small = rank * (rows + data.count // max(rows, 1)) < data.count
        if start < net.arena.learned and small:
            yield start, parameter, rows


class PowerSgd(ErrorFeedback):
    """Each gradient M (outputs x the rest) as P Qᵀ of rank r: Vogels et al., NeurIPS 2019.

    One step of the power method, from the last Q on: P = M Q is summed and made orthonormal, then
    Q = Mᵀ P is summed. Parameters that this would not make smaller travel as they are, with P.
    """

    parameter = staticmethod(read_rank)
    touched = 15.0, 0.0

    def __init__(
        self, comm: Communicator, net: NetLayout, iteration: Callable[[], int], rank: int
    ) -> None:
        super().__init__(comm, net, iteration)
        self._rank = rank
        self._matrices: list[Matrix] = []
        self._right: dict[int, Any] = {}
        """By a matrix's start, the Q of the last iteration."""
        for start, parameter, rows in matrices(net, rank):
            data, order = parameter.blob.data, None
            if data.layout is not None:
                part = self.residual.parts[net.parameters.index(parameter)]
                order = self._find_order(part, start)
            self._matrices.append(Matrix(start, start + data.size, rows, order))

    @classmethod
    def messages(
        cls, net: Layout, bucket: Bucket, ranks: int, rank: int
    ) -> list[tuple[Operation, int]]:
        rest, left, right = bucket.stop - bucket.start, 0, 0
        for start, parameter, rows in matrices(net, rank):
            if bucket.start <= start < bucket.stop:
                count = parameter.blob.data.count
                rest -= parameter.blob.data.size
                left, right = left + rank * rows, right + rank * (count // rows)
        return [(Operation.ALL_REDUCE, left + rest), (Operation.ALL_REDUCE, right)]

    def compress(self, bucket: Bucket, values: Any, total: Any) -> None:
        """Two all-reduces, of P with all that is in no matrix, and of Q."""
        xp = self.xp
        inside = [m for m in self._matrices if bucket.start <= m.start < bucket.stop]
        local = [matrix.take(values, bucket) for matrix in inside]
        others = xp.ones(len(values), bool)
        for matrix in inside:
            matrix.part(others, bucket)[:] = False
        others = xp.flatnonzero(others)
        pairs = zip(inside, local, strict=True)
        left = [m @ self._last(matrix, m.shape[1]) for matrix, m in pairs]
        *left, rest = self._sum([*left, values[others]])
        total[:] = 0
        total[others], values[others] = rest, 0
        left = [xp.linalg.qr(p)[0] for p in left]
        products = [m.T @ p for m, p in zip(local, left, strict=True)]
        sums = self._sum(products)
        for matrix, m, p, mine, q in zip(inside, local, left, products, sums, strict=True):
            matrix.put(m - p @ mine.T, values, bucket)
            matrix.put(p @ q.T, total, bucket)
            self._right[matrix.start] = q

    def settle(self) -> None:
        """The next Q begins at random."""
        super().settle()
        self._right.clear()

    def _find_order(self, part: Tensor, start: int) -> Any:
        """By row-major index where in its memory a parameter's element lies. part: its residual,
        which is zero. (Large indices are not float32 numbers: they go in two halves.)"""
        indices = np.arange(1, part.count + 1).reshape(part.shape)
        halves = []
        for half in (indices >> 12, indices & 4095, 0):
            self.net.backend.write(part, half)
            memory = self.residual.flat.array[start : start + part.size]
            halves.append(np.array(memory.tolist(), np.int64))
        there = (halves[0] << 12) + halves[1]
        where = np.flatnonzero(there)
        return self.xp.asarray(where[np.argsort(there[where])].astype(np.int32))

    def _last(self, matrix: Matrix, columns: int) -> Any:
        if matrix.start not in self._right:
            generator = np.random.default_rng([matrix.start, self.iteration()])
            values = generator.standard_normal((columns, self._rank), np.float32)
            self._right[matrix.start] = self.xp.asarray(values)
        return self._right[matrix.start]

    def _sum(self, arrays: list[Any]) -> list[Any]:
        """The sums of all ranks', in one message."""
        if not arrays:
            return []
        message = self.xp.concatenate([array.ravel() for array in arrays])
        self.sum(message)
        sizes = np.cumsum([array.size for array in arrays])[:-1].tolist()
        parts = self.xp.split(message, sizes)
        return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]
