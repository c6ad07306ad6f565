"""Owns how tensors lie in a GPU's memory: the order of their axes and their element type."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..tensor import Shape, Tensor

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "uint8": 1, "float64": 8}
C_TYPES = {
    "float32": "float",
    "bfloat16": "__nv_bfloat16",
    "float16": "__half",
    "int32": "int",
    "uint8": "unsigned char",
    "float64": "double",
}


@dataclass(frozen=True)
class Layout:
    """shape: the axes in Caffe's order (for weights of an inner product, those of its input too).

    nhwc: channels vary fastest: of shape (N, C, *rest) the memory order is (N, *rest, C).
    """

    shape: Shape
    dtype: str
    nhwc: bool

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def to_memory(self, values: np.ndarray) -> np.ndarray:
        """Row-major values of the tensor's shape in memory order, as float32."""
        values = np.asarray(values, np.float32).reshape(self.shape)
        return np.ascontiguousarray(np.moveaxis(values, 1, -1) if self.nhwc else values)

    def from_memory(self, flat: np.ndarray, shape: Shape) -> np.ndarray:
        """The reverse of `to_memory`: an array of the tensor's shape."""
        if not self.nhwc:
            return flat.reshape(shape)
        turned = flat.reshape((self.shape[0], *self.shape[2:], self.shape[1]))
        return np.ascontiguousarray(np.moveaxis(turned, -1, 1)).reshape(shape)


def dtype_of(tensor: Tensor) -> str:
    """The element type in which the tensor lies in memory."""
    return tensor.dtype if tensor.layout is None else tensor.layout.dtype


def is_nhwc(tensor: Tensor) -> bool:
    """Whether channels vary fastest (tensors of two axes or less are row-major and NHWC alike)."""
    return len(tensor.shape) <= 2 or (tensor.layout is not None and tensor.layout.nhwc)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 to the bits of bfloat16 (uint16), rounded to the nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The bits of bfloat16 (uint16) to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
