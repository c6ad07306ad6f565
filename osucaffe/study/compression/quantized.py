"""Quantized gradients: blocks of numbers of 8 bits, or of signs, with a scale each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from ...comm.communicator import Communicator
from ...parallel.buckets import Bucket, NetLayout
from ...parallel.hook import Gathered


class Blocks(Gathered):
    """A float32 scale for each `block` elements."""

    block: int
    bits: int
    """Of an element."""

    @classmethod
    def words(cls, count: int) -> int:
        """A scale and the elements of each block."""
        return -(-count // cls.block) * (1 + cls.block * cls.bits // 32)

    @abstractmethod
    def quantize(self, blocks: Any, sizes: Any) -> tuple[Any, Any]:
        """The scales of blocks (count, block), and the bytes of their elements. sizes (count): how
        many elements each has; after these come zeros."""

    @abstractmethod
    def levels(self, content: Any) -> Any:
        """By bytes, the elements in units of their block's scale (flat)."""

    def encode(self, values: Any) -> Any:
        """The scales, then the elements."""
        xp, block = self.xp, self.block
        blocks = xp.zeros((-(-len(values) // block), block), np.float32)
        blocks.ravel()[: len(values)] = values
        sizes = xp.full(len(blocks), block, np.float32)
        sizes[-1] = len(values) - (len(blocks) - 1) * block
        scales, content = self.quantize(blocks, sizes)
        return xp.concatenate([scales.view(np.int32), content.view(np.int32)])

    def decode(self, words: Any, out: Any, sign: float) -> None:
        """The zeros after the last elements are left out."""
        count = -(-len(out) // self.block)
        scales = words[:count].view(np.float32) * np.float32(sign)
        levels = self.levels(words[count:].view(np.uint8)).reshape(count, self.block)
        out += (levels * scales[:, None]).ravel()[: len(out)]


class EightBits(Blocks):
    """Each block's largest magnitude becomes 127: a quarter of the bytes of float32.

    Dettmers, ICLR 2016, with blocks as in Dettmers et al., ICLR 2022 (but linear).
    """

    block, bits = 256, 8
    touched = 20.0, 5.0

    def quantize(self, blocks: Any, sizes: Any) -> tuple[Any, Any]:
        """Rounded to the nearest."""
        scales = self.xp.abs(blocks).max(axis=1) / np.float32(127)
        blocks /= self.xp.where(scales > 0, scales, np.float32(1))[:, None]
        return scales, self.xp.rint(blocks).astype(np.int8).ravel()

    def levels(self, content: Any) -> Any:
        """-127 .. 127."""
        return content.view(np.int8)


class Signs(Blocks):
    """Each element's sign, times the mean magnitude of its block: a bit each, and a little.

    Seide et al., Interspeech 2014; the scaled sign of Karimireddy et al., ICML 2019, in blocks.
    """

    block, bits = 1024, 1
    touched = 18.0, 6.0

    def __init__(self, comm: Communicator, net: NetLayout, iteration: Callable[[], int]) -> None:
        super().__init__(comm, net, iteration)
        for part in self.residual.parts:
            net.backend.write(part, 1)
        self._padding = self.residual.flat.array == 0
        net.backend.write(self.residual.flat, 0)

    def compress(self, bucket: Bucket, values: Any, total: Any) -> None:
        """Padding, which has no sign, stays zero."""
        super().compress(bucket, values, total)
        padding = self._padding[bucket.start : bucket.stop]
        values[padding] = 0
        total[padding] = 0

    def quantize(self, blocks: Any, sizes: Any) -> tuple[Any, Any]:
        """Zeros count as positive."""
        return self.xp.abs(blocks).sum(axis=1) / sizes, self.xp.packbits(blocks.ravel() >= 0)

    def levels(self, content: Any) -> Any:
        """-1 or 1."""
        return self.xp.unpackbits(content).astype(np.int8) * np.int8(2) - np.int8(1)
