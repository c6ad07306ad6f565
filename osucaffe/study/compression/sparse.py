"""Sparse gradients: of each bucket the largest, or random ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...comm.algorithms import Operation
from ...comm.communicator import Communicator
from ...parallel.buckets import Bucket, Layout, NetLayout
from ...parallel.hook import ErrorFeedback, Gathered


def count(share: float, size: int) -> int:
    """How many of these elements a share of them is, at least one."""
    return min(size, math.ceil(share * size))


def read_share(text: str) -> float:
    """A share above 0 and up to 1. ValueError."""
    if not 0 < (share := float(text)) <= 1:
        raise ValueError(text)
    return share


class TopK(Gathered):
    """The share of a bucket's elements that is largest, with their indices: 8 bytes each.

    Aji & Heafield, EMNLP 2017; Stich et al., NeurIPS 2018.
    """

    parameter = staticmethod(read_share)
    touched = 30.0, 0.0

    def __init__(
        self, comm: Communicator, net: NetLayout, iteration: Callable[[], int], share: float
    ) -> None:
        super().__init__(comm, net, iteration)
        self._share = share

    @classmethod
    def words(cls, size: int, share: float) -> int:
        """An index and a value each."""
        return 2 * count(share, size)

    def encode(self, values: Any) -> Any:
        """The indices, then the bits of the values."""
        xp, size = self.xp, len(values)
        k = count(self._share, size)
        if k == size:
            chosen = xp.arange(size)
        else:
            chosen = xp.argpartition(xp.abs(values), size - k)[size - k :]
        return xp.concatenate([chosen.astype(np.int32), values[chosen].view(np.int32)])

    def decode(self, words: Any, out: Any, sign: float) -> None:
        """An index occurs once."""
        k = len(words) // 2
        out[words[:k]] += np.float32(sign) * words[k:].view(np.float32)


class RandomK(ErrorFeedback):
    """A random share of a bucket's elements, the same on all ranks: no indices travel, and an
    all-reduce sums the values. Stich et al., NeurIPS 2018."""

    parameter = staticmethod(read_share)
    touched = 12.0, 0.0

    def __init__(
        self, comm: Communicator, net: NetLayout, iteration: Callable[[], int], share: float
    ) -> None:
        super().__init__(comm, net, iteration)
        self._share = share

    @classmethod
    def messages(
        cls, net: Layout, bucket: Bucket, ranks: int, share: float
    ) -> list[tuple[Operation, int]]:
        return [(Operation.ALL_REDUCE, count(share, bucket.stop - bucket.start))]

    def compress(self, bucket: Bucket, values: Any, total: Any) -> None:
        """Bucket and iteration are the seed."""
        size = len(values)
        generator = np.random.default_rng([bucket.start, self.iteration()])
        chosen = generator.choice(size, count(self._share, size), replace=False, shuffle=False)
        chosen = self.xp.asarray(np.sort(chosen))
        sent = values[chosen]
        values[chosen] = 0
        self.sum(sent)
        total[:] = 0
        total[chosen] = sent
