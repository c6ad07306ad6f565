"""Layouts, and the steps that execute a primitive of oneDNN on tensors placed late."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_void_p
from dataclasses import dataclass

from ...tensor import Shape, Step, Tensor, sequence
from .api import Descriptor, ExecutionArgument, Library, PrimitiveDescriptor, Unsupported

Formatted = tuple[Tensor, Descriptor]
"""A tensor and the format in which its memory is to be read or written."""


@dataclass
class Layout:
    """How a tensor lies in memory when it is not row-major.

    form: oneDNN's format, over dimensions that may regroup the tensor's (weights in groups).
    plain: the format of the same dimensions when the tensor's elements are in row-major order.
    """

    form: Descriptor
    plain: Descriptor

    @functools.cached_property
    def size(self) -> int:
        """In elements of the tensor, which have four bytes, padding included."""
        return -(-self.form.bytes // 4)

    def part(self, shape: Shape) -> Layout | None:
        """That of a part of the tensor along the first axis; None: row-major."""
        form, plain = self.form.like(shape), self.plain.like(shape)
        return None if form is None or plain is None or form == plain else Layout(form, plain)

    def has_part(self, shape: Shape) -> bool:
        """Whether the first of the tensor, that many, lie as they would lie alone."""
        try:
            return self.form.like(shape) == self.form.window(shape, [0] * len(shape))
        except Unsupported:
            return False


def choose_layout(tensor: Tensor, layout: Layout | None) -> None:
    """Choose the layout of an open tensor; None: row-major, as where its parts would not each lie
    in one piece."""
    root = tensor.root
    if layout is not None and root.parts and not layout.has_part(root.parts[0].shape):
        layout = None
    root.layout = layout


class Part:
    """Some elements of a row-major tensor of four-byte elements: `size` of them, which are the
    `index`-th such part. The index may change between executions."""

    __slots__ = ("index", "size", "tensor")

    def __init__(self, tensor: Tensor, index: int = 0, size: int = 1) -> None:
        self.tensor, self.index, self.size = tensor, index, size

    @property
    def address(self) -> int:
        return self.tensor.address + 4 * self.index * self.size


Located = Tensor | Part
"""What lies somewhere in memory."""


def execution(
    library: Library,
    chosen: PrimitiveDescriptor,
    arguments: Mapping[int, tuple[Located, Descriptor]],
) -> Step:
    """The step that executes a primitive on tensors: one call of the library, nothing allocated."""
    primitive = library.primitive(chosen)
    tensors = [tensor for tensor, _ in arguments.values()]
    memories = [library.memory(form) for _, form in arguments.values()]
    handles, addresses = [memory._as_parameter_ for memory in memories], [0] * len(memories)
    array = (ExecutionArgument * len(arguments))(*map(ExecutionArgument, arguments, handles))
    execute, set_data_handle = library.execute, library.set_data_handle
    handle, stream, count = primitive._as_parameter_, c_void_p(library.stream), c_int(len(array))
    implementation = chosen.implementation  # run must not refer to itself: a cycle lives on
    moves = not all(isinstance(tensor, Tensor) for tensor in tensors)
    bound = -1

    def run(owned: object = (primitive, memories)) -> None:  # whose handles it uses
        nonlocal bound
        if bound != Tensor.placements or moves:
            bound = Tensor.placements
            for number, tensor in enumerate(tensors):
                if tensor.address != addresses[number]:
                    addresses[number] = tensor.address
                    set_data_handle(handles[number], addresses[number])
        if execute(handle, stream, count, array):
            raise RuntimeError(f"oneDNN could not execute {implementation}")

    return Step(run, implementation)


def in_sequence(steps: Sequence[Step]) -> Step:
    """One step that runs all, and names the code of each."""
    if len(steps) == 1:
        return steps[0]
    return Step(sequence(steps), " ".join(step.implementation for step in steps))
