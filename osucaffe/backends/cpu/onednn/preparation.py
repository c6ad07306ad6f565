"""How a call becomes a step: operands in the formats that a primitive wants, or reordered.

A primitive's function names its operands, lets `choose` find an implementation for the formats in
which they lie, and ends with `step`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...primitives.recording import Primitive
from ...tensor import Step, Tensor
from . import api
from .api import Descriptor, Library, PrimitiveDescriptor, Unsupported
from .memory import Formatted, Layout, Located, choose_layout, execution, in_sequence


@dataclass
class Operand:
    """A tensor seen under the dimensions that a primitive wants.

    plain: the format of those dimensions when the tensor's elements are in row-major order.
    add: what is written shall be added to the tensor.
    """

    library: Library
    tensor: Tensor
    plain: Descriptor
    add: bool

    @property
    def form(self) -> Descriptor:
        """The format in which it lies, under these dimensions; `any` while that is open."""
        if self.tensor.layout_undecided:
            return self.library.any(self.plain.dimensions)
        layout = self.tensor.layout
        return self.plain if layout is None or layout.plain != self.plain else layout.form

    @property
    def chosen_form(self) -> Descriptor:
        """The format in which it lies. Raises Unsupported while that is open."""
        if self.tensor.layout_undecided:
            raise Unsupported("it has not been written yet")
        return self.form

    @property
    def formatted(self) -> Formatted:
        """The tensor and the format in which it lies."""
        return self.tensor, self.chosen_form


class Preparation:
    """Prepares one call: collects the steps that it needs and the scratch between them.

    only_forward: it belongs to a program without a backward pass.
    """

    def __init__(self, library: Library, call: Primitive, *, only_forward: bool = False) -> None:
        self.library = library
        self.call = call
        self.only_forward = only_forward
        self.before: list[Step] = []
        self._after: list[Step] = []

    def operand(self, tensor: Tensor, plain: Descriptor | None = None) -> Operand:
        """A tensor under its own dimensions, or under others; see `Operand`."""
        plain = plain or self.library.plain(tensor.shape or (1,))
        add = any(getattr(self.call, name) is tensor for name in self.call.accumulates)
        return Operand(self.library, tensor, plain, add)

    def channels_last(self, shape: Sequence[int]) -> Descriptor:
        """The format N x spatial x C of a tensor N x C x spatial."""
        strides = [shape[1] * math.prod(shape[axis + 1 :]) for axis in range(2, len(shape))]
        return self.library.plain(shape, (math.prod(shape[1:]), 1, *strides))

    def choose(
        self,
        describe: Callable[..., PrimitiveDescriptor],
        *forms: Descriptor,
        reorderable: Sequence[int] = (),
        try_nhwc: bool = False,
        preferred: Sequence[Sequence[Descriptor]] = (),
    ) -> PrimitiveDescriptor:
        """The implementation that `describe(*forms)` finds for operands in these formats.

        Where oneDNN has no fast one for those, it chooses the formats itself: of the operands
        whose indices are in `reorderable` (their reorders cost little), else of all. Of those that
        are not fast, its reference code comes last: it takes a hundred times as long as a GEMM.
        try_nhwc: then the others are tried with their channels last. preferred: formats to try
        before all others.
        """
        free = [self.library.any(form.dimensions) for form in forms]
        some = [free[i] if i in reorderable else form for i, form in enumerate(forms)]
        tried = [*preferred, forms, some, free]
        if try_nhwc:
            tried.append([
                any_ if i in reorderable else self.channels_last(any_.dimensions)
                for i, any_ in enumerate(free)
            ])  # fmt: skip
        slow: PrimitiveDescriptor | None = None
        why = Unsupported(self.call.name)
        for formats in tried:
            try:
                chosen = describe(*formats)
            except Unsupported as error:
                if not any(form in free for form in formats):  # which are wrong for some primitives
                    why = error
                continue
            if chosen.is_fast:
                return chosen
            if slow is None or (slow.is_reference and not chosen.is_reference):
                slow = chosen
        if slow is None:
            raise why
        return slow

    def step(
        self,
        chosen: PrimitiveDescriptor,
        reads: Mapping[int, Operand | None],
        writes: Mapping[int, Operand | None],
        notes: Mapping[int, Located] | None = None,
        given: Mapping[int, Formatted] | None = None,
    ) -> Step:
        """The step that runs the implementation, with the reorders before and after it.

        reads, writes: the operand of each argument; notes: what lies in the formats that the
        implementation wants; given: what it takes as it lies.
        """
        step = self.execution(chosen, reads, writes, notes or {}, given or {})
        return in_sequence([*self.before, step, *self._after])

    def execution(
        self,
        chosen: PrimitiveDescriptor,
        reads: Mapping[int, Operand | None],
        writes: Mapping[int, Operand | None],
        notes: Mapping[int, Located],
        given: Mapping[int, Formatted],
    ) -> Step:
        """The execution alone, which may run often after the reorders in `before`: see `step`."""
        arguments: dict[int, tuple[Located, Descriptor]] = {}
        for argument, operand in reads.items():
            if operand is not None:
                arguments[argument] = self._source(operand, chosen.wants(argument))
        for argument, operand in writes.items():
            if operand is not None:
                arguments[argument] = self._target(operand, chosen.wants(argument))
        for argument, place in notes.items():
            arguments[argument] = place, chosen.wants(argument)
        self.call.implementation = f"oneDNN: {chosen.implementation}"
        return self._execution(chosen, {**arguments, **given})

    def reorder(self, source: Formatted, target: Formatted, *, add: bool = False) -> Step:
        """The step that copies between two formats of the same dimensions; add: adds."""
        sum_scale = 1.0 if add else None
        chosen = self.library.describe("reorder", source[1], target[1], sum_scale=sum_scale)
        return self._execution(chosen, {api.SRC: source, api.DST: target})

    def _execution(
        self, chosen: PrimitiveDescriptor, arguments: Mapping[int, tuple[Located, Descriptor]]
    ) -> Step:
        if chosen.has(api.SCRATCHPAD):
            form = chosen.wants(api.SCRATCHPAD)
            arguments = {**arguments, api.SCRATCHPAD: (self._scratch(form), form)}
        return execution(self.library, chosen, arguments)

    def _source(self, operand: Operand, form: Descriptor) -> Formatted:
        """The operand in this format: itself, or scratch that a reorder fills first."""
        self.choose_layout(operand, form)
        tensor, layout = operand.tensor, operand.tensor.layout
        if layout is not None and layout.plain != operand.plain:
            tensor = self._reordered((tensor, layout.form), layout.plain)  # to other dimensions
        if operand.form != form:
            tensor = self._reordered((tensor, operand.form), form)
        return tensor, form

    def _target(self, operand: Operand, produced: Descriptor) -> Formatted:
        """Where to write the operand: itself, or scratch that is reordered into it after."""
        self.choose_layout(operand, produced)
        tensor, layout = operand.tensor, operand.tensor.layout
        other_dimensions = layout is not None and layout.plain != operand.plain
        if operand.form == produced and not operand.add and not other_dimensions:
            return tensor, produced
        scratch = self._scratch(produced)
        written, final = produced, operand.form
        if other_dimensions:
            if produced != operand.plain:
                raise Unsupported("it would take two reorders")
            written, final = layout.plain, layout.form
        self._after.append(self.reorder((scratch, written), (tensor, final), add=operand.add))
        return scratch, produced

    def choose_layout(self, operand: Operand, form: Descriptor) -> None:
        """Let the operand lie in this format, if that is open."""
        if operand.tensor.layout_undecided:
            plain = operand.plain
            choose_layout(operand.tensor, None if form == plain else Layout(form, plain))

    def _reordered(self, source: Formatted, form: Descriptor) -> Tensor:
        scratch = self._scratch(form)
        self.before.append(self.reorder(source, (scratch, form)))
        return scratch

    def _scratch(self, form: Descriptor) -> Tensor:
        return self.call.temporary((form.bytes,), "uint8")


def padding_behind(
    x: Tensor,
    y: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """How far the last windows of x, of which y has one value each, reach beyond it on each axis
    (less than 0: they do not come to its end)."""
    return [
        (out - 1) * step + (size - 1) * apart + 1 - extent - before
        for out, step, size, apart, extent, before in zip(
            y.shape[2:], stride, kernel, dilation, x.shape[2:], pad, strict=True
        )
    ]
