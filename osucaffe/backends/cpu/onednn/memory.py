"""Owns how tensors meet oneDNN: layouts, reorders where layouts differ, and the steps that execute.

A primitive's function describes what it computes, asks `Preparation` for the tensor that holds
each argument in the wanted format (`source`, `target`), and ends with `execute`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import c_int, c_void_p
from typing import Any

from ...tensor import Call, Step, Tensor
from . import api
from .api import Descriptor, ExecutionArgument, Library, PrimitiveDescriptor, Unsupported

Held = tuple[Tensor, Descriptor]
"""A tensor and the format in which its memory is to be read or written."""


class Layout:
    """How a tensor lies in memory when it is not row-major.

    descriptor: oneDNN's format, over dimensions that may regroup the tensor's (weights in groups).
    plain: the same dimensions in the tensor's row-major order.
    size: in elements of the tensor, padding included.
    """

    def __init__(self, descriptor: Descriptor, plain: Descriptor, size: int | None = None) -> None:
        self.descriptor = descriptor
        self.plain = plain
        self.size = descriptor.size if size is None else size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and (
            self is other or (self.descriptor == other.descriptor and self.plain == other.plain)
        )

    __hash__ = None  # type: ignore[assignment]


def _root(tensor: Tensor) -> Tensor:
    """The tensor whose layout decides this one's."""
    return tensor if tensor.like is None else _root(tensor.like)


def is_open(tensor: Tensor) -> bool:
    """Whether its layout is still to be chosen."""
    return _root(tensor).flexible


def fast(descriptor: PrimitiveDescriptor) -> bool:
    """Whether an implementation is one of oneDNN's generated ones, not its portable fallback."""
    return descriptor.implementation.startswith(("jit", "brg", "simple"))


class Preparation:
    """Prepares one call: collects the steps that it needs and the scratch between them."""

    def __init__(self, library: Library, call: Call) -> None:
        self.library = library
        self.call = call
        self._before: list[Step] = []
        self._after: list[Step] = []

    # -- formats -------------------------------------------------------------------------------

    def plain(self, tensor: Tensor, dimensions: Sequence[int] | None = None) -> Descriptor:
        """The row-major format of a tensor, seen under other dimensions if given."""
        return self.library.plain(dimensions or tensor.shape or (1,))

    def held(self, tensor: Tensor, plain: Descriptor | None = None) -> Descriptor:
        """The format in which a tensor lies; `any` while that is open.

        plain: its row-major order seen under the dimensions that the primitive wants.
        """
        plain = plain or self.plain(tensor)
        if is_open(tensor):
            return self.library.any(plain.dimensions)
        if tensor.layout is None and plain == self.plain(tensor) and plain.dimensions[1:2] == (1,):
            return self.channels_last(tensor.shape)  # of one channel: the same memory
        if tensor.layout is None or tensor.layout.plain != plain:
            return plain
        return tensor.layout.descriptor

    def channels_last(self, shape: Sequence[int]) -> Descriptor:
        """The format N x spatial x C of a tensor N x C x spatial."""
        strides = [shape[1]]
        for extent in reversed(shape[3:]):
            strides.insert(0, strides[0] * extent)
        return self.library.plain(shape, (math.prod(shape[1:]), 1, *strides))

    def choose(
        self,
        describe: Callable[..., PrimitiveDescriptor],
        *held: Descriptor,
        cheap: Sequence[int] = (),
    ) -> PrimitiveDescriptor:
        """The implementation for arguments that lie in the formats `held`.

        Where oneDNN has no fast one for those, it chooses the formats itself: of the arguments
        whose positions are in `cheap` (their reorders cost little), else of all.
        """
        free = [self.library.any(form.dimensions) for form in held]
        some = [free[i] if i in cheap else form for i, form in enumerate(held)]
        slow: PrimitiveDescriptor | None = None
        for forms in (held, some, free):
            try:
                chosen = describe(*forms)
            except Unsupported:
                continue
            if fast(chosen):
                return chosen
            slow = slow or chosen
        if slow is None:
            raise Unsupported(self.call.name)
        return slow

    # -- steps ---------------------------------------------------------------------------------

    def source(self, tensor: Tensor, wanted: Descriptor, plain: Descriptor | None = None) -> Held:
        """The tensor in the wanted format: itself, or scratch that is filled by a reorder first."""
        plain = plain or self.plain(tensor)
        if is_open(tensor):
            self._choose(tensor, wanted, plain)
        layout = tensor.layout
        if layout is not None and layout.plain != plain:  # other dimensions: by way of row-major
            tensor = self._reordered(tensor, layout.descriptor, layout.plain)
        elif layout is not None:
            plain = layout.descriptor
        if plain != wanted:
            tensor = self._reordered(tensor, plain, wanted)
        return tensor, wanted

    def target(
        self,
        tensor: Tensor,
        produced: Descriptor,
        plain: Descriptor | None = None,
        *,
        add: bool = False,
    ) -> Held:
        """Where to write what ends in the tensor: itself, or scratch that is reordered after.

        add: the tensor shall be added to instead of overwritten.
        """
        plain = plain or self.plain(tensor)
        if is_open(tensor):
            self._choose(tensor, produced, plain)
        layout = tensor.layout
        final = plain if layout is None else layout.descriptor
        if layout is not None and layout.plain != plain:
            if produced != plain:
                raise Unsupported("scratch in two formats")
            scratch = self.scratch(produced)
            self._after.append(self.reorder((scratch, layout.plain), (tensor, final), add))
            return scratch, produced
        if final == produced and not add:
            return tensor, produced
        scratch = self.scratch(produced)
        self._after.append(self.reorder((scratch, produced), (tensor, final), add))
        return scratch, produced

    def scratch(self, descriptor: Descriptor) -> Tensor:
        if descriptor.data_type == api.F32:
            return self.call.temporary((descriptor.size,))
        return self.call.temporary((descriptor.bytes,), "uint8")

    def execute(self, descriptor: PrimitiveDescriptor, arguments: dict[int, Held | None]) -> Step:
        """The step that runs the primitive, with the reorders before and after it."""
        scratchpad = descriptor.wants(api.SCRATCHPAD)
        if scratchpad is not None:
            arguments = {
                **arguments,
                api.SCRATCHPAD: (self.call.temporary((scratchpad.bytes,), "uint8"), scratchpad),
            }
        bound = {argument: held for argument, held in arguments.items() if held is not None}
        step = execution(self.library, descriptor, bound)
        return in_sequence([*self._before, step, *self._after])

    def _choose(self, tensor: Tensor, descriptor: Descriptor, plain: Descriptor) -> None:
        _root(tensor).layout = None if descriptor == plain else Layout(descriptor, plain)

    def _reordered(self, tensor: Tensor, held: Descriptor, wanted: Descriptor) -> Tensor:
        scratch = self.scratch(wanted)
        self._before.append(self.reorder((tensor, held), (scratch, wanted)))
        return scratch

    def reorder(self, source: Held, target: Held, add: bool = False) -> Step:
        """The step that copies between two formats of the same dimensions, or adds."""
        chosen = self.library.describe("reorder", source[1], target[1], add=add)
        scratchpad = chosen.wants(api.SCRATCHPAD)
        arguments = {api.SRC: source, api.DST: target}
        if scratchpad is not None:
            memory = self.call.temporary((scratchpad.bytes,), "uint8")
            arguments[api.SCRATCHPAD] = memory, scratchpad
        return execution(self.library, chosen, arguments)


def in_sequence(steps: list[Step]) -> Step:
    """One step that runs all."""
    if len(steps) == 1:
        return steps[0]

    def run() -> None:
        for step in steps:
            step()

    return run


class _Binding:
    """A memory object of the library that follows its tensor to where that is placed."""

    __slots__ = ("address", "memory", "tensor")

    def __init__(self, tensor: Tensor, memory: c_void_p) -> None:
        self.tensor = tensor
        self.memory = memory
        self.address = 0


def execution(
    library: Library, descriptor: PrimitiveDescriptor, arguments: dict[int, Held]
) -> Step:
    """The step that executes a primitive on tensors: one call of the library, nothing allocated."""
    primitive = library.primitive(descriptor)
    memories = [library.memory(form) for _, form in arguments.values()]
    array = (ExecutionArgument * len(arguments))(
        *((argument, memory.value) for argument, memory in zip(arguments, memories, strict=True))
    )
    bindings = [
        _Binding(tensor, memory._as_parameter_)
        for (tensor, _), memory in zip(arguments.values(), memories, strict=True)
    ]
    return _runner(library, descriptor, primitive, memories, bindings, array)


def _runner(
    library: Library, descriptor: Any, primitive: Any, memories: Any, bindings: Any, array: Any
) -> Step:
    execute, set_data_handle = library.execute, library.set_data_handle
    handle, stream, count = primitive._as_parameter_, c_void_p(library.stream), c_int(len(array))
    implementation = descriptor.implementation  # run must not refer to itself: a cycle lives on

    def run() -> None:
        for binding in bindings:
            if binding.tensor.address != binding.address:
                binding.address = binding.tensor.address
                set_data_handle(binding.memory, binding.address)
        if execute(handle, stream, count, array):
            raise RuntimeError(f"oneDNN could not execute {implementation}")

    run.owns = primitive, memories, descriptor  # type: ignore[attr-defined]
    run.implementation = implementation  # type: ignore[attr-defined]
    return run
