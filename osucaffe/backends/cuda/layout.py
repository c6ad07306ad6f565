"""Memory layouts on the GPU: the order of a tensor's axes and its element type."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..tensor import Shape, Tensor

ITEM_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int32": 4,
    "uint8": 1,
    "float64": 8,
    "int64": 8,
}
C_TYPES = {
    "float32": "float",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "int32": "int",
    "uint8": "uint8_t",
    "float64": "double",
    "int64": "int64_t",
}


def c_struct(name: str, rows: np.dtype) -> str:
    """The C structure that a row of a NumPy table is."""
    assert rows.fields is not None
    kinds = {field: found[0] for field, found in rows.fields.items()}
    assert np.dtype(list(kinds.items()), align=True) == rows, (
        "a compiler would lay it out otherwise"
    )
    members = " ".join(f"{C_TYPES[kind.name]} {field};" for field, kind in kinds.items())
    return f"struct {name} {{ {members} }};"


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

    def part(self, shape: Shape) -> Layout:
        """That of a part of the tensor along the first axis, which is the slowest in any order."""
        return replace(self, shape=shape)

    def to_memory(self, values: np.ndarray) -> np.ndarray:
        """Row-major values of the tensor's shape in memory order, as float32."""
        values = np.asarray(values, np.float32).reshape(self.shape)
        return np.ascontiguousarray(np.moveaxis(values, 1, -1) if self.nhwc else values)

    def from_memory(self, flat: np.ndarray, shape: Shape) -> np.ndarray:
        """The reverse of `to_memory`: an array of the tensor's shape."""
        if not self.nhwc:
            return flat.reshape(shape)
        nhwc = flat.reshape((self.shape[0], *self.shape[2:], self.shape[1]))
        return np.ascontiguousarray(np.moveaxis(nhwc, -1, 1)).reshape(shape)


@dataclass(frozen=True)
class Opaque:
    """Of a tensor that only kernels know how to read: it reads as zeros. size: elements of memory
    that they need."""

    dtype: str
    shape: Shape = ()
    nhwc: bool = False
    size: int = 0

    def to_memory(self, values: np.ndarray) -> np.ndarray:
        return np.zeros(0, np.float32)

    def from_memory(self, flat: np.ndarray, shape: Shape) -> np.ndarray:
        return np.zeros(shape, np.float32)


def with_layout(tensor: Tensor, layout: Layout) -> Tensor:
    """The tensor, which is new, in this layout."""
    tensor.flexible = True
    tensor.layout = layout
    return tensor


def in_dtype(tensor: Tensor, dtype: str, name: str = "") -> Tensor:
    """A new tensor that lies as this one does, but for its type."""
    nhwc = tensor.layout is not None and tensor.layout.nhwc
    return with_layout(Tensor(tensor.shape, name=name), Layout(_shape(tensor), dtype, nhwc))


def dtype_of(tensor: Tensor) -> str:
    """The element type in which the tensor lies in memory."""
    return tensor.dtype if tensor.layout is None else tensor.layout.dtype


def c_type(tensor: Tensor) -> str:
    """The same in C, as kernels call it (common.cuh)."""
    return C_TYPES[dtype_of(tensor)]


def _shape(tensor: Tensor) -> Shape:
    shape: Shape = tensor.layout.shape if tensor.layout is not None else tensor.shape
    return shape


def is_row_major(tensor: Tensor) -> bool:
    """Whether the elements lie in the order of the tensor's shape."""
    if tensor.layout is None or not tensor.layout.nhwc:
        return True
    return _is_both(_shape(tensor))


def is_nhwc(tensor: Tensor) -> bool:
    """Whether channels vary fastest (where it makes no difference, tensors are row-major too)."""
    return _is_both(_shape(tensor)) or (tensor.layout is not None and tensor.layout.nhwc)


def _is_both(shape: Shape) -> bool:
    """Whether channels last is the order of the shape, too."""
    return len(shape) <= 2 or shape[1] == 1 or math.prod(shape[2:]) == 1


def is_channels_last(tensor: Tensor) -> bool:
    """Whether the order differs from row-major."""
    return not is_row_major(tensor)


def strides(tensor: Tensor) -> tuple[int, ...]:
    """The distance in memory between neighbours along each axis, in elements."""
    nhwc = tensor.layout is not None and tensor.layout.nhwc
    return _strides(_shape(tensor), nhwc)


def channels_last(shape: Shape) -> tuple[int, ...]:
    """The same for (N, C, *extents) with the channels last."""
    return _strides(shape, True)


def _strides(shape: Shape, nhwc: bool) -> tuple[int, ...]:
    order = [0, *range(2, len(shape)), 1] if nhwc else list(range(len(shape)))
    result = [0] * len(shape)
    distance = 1
    for axis in reversed(order):
        result[axis] = distance
        distance *= shape[axis]
    return tuple(result)


def choose_row_layout(tensor: Tensor, dtype: str) -> None:
    """Let a tensor whose layout is still open lie in the order of its shape, in this type.

    For blobs whose last axis is that of features, such as those of recurrent nets (T, N, D).
    Parameters stay float32.
    """
    root = tensor.root
    if not root.flexible:
        return
    if root.persistent or root.dtype != "float32":
        root.flexible = False
    else:
        root.layout = Layout(root.shape, dtype, False)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 to the bits of bfloat16 (uint16), rounded to the nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The bits of bfloat16 (uint16) to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
