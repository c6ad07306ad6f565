"""The arena: all parameters of a net in one flat buffer, all their gradients in another.

They lie in backward order: the parameters of the last layer come first, because their gradients
are complete first. So a range of finished gradients is a slice, and an update is one pass. Those
that are divided among ranks lie after these, and after all others those that no update changes
(lr_mult 0, such as BatchNorm's statistics): they would cut what travels between ranks into pieces.
The parts of one tensor lie where the last of them would.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from .backends.backend import Backend
from .backends.tensor import Tensor
from .blob import Blob

ALIGNMENT = 16
"""Parameters begin at multiples of this many elements (64 bytes: a cache line)."""


@dataclass(eq=False)
class Parameter:
    """A learnable blob: whose it is, and the multipliers of its learning rate and decay.

    layer: what messages call its layer. index: its number among that layer's parameters.
    """

    name: str
    layer: str
    index: int
    blob: Blob
    lr_mult: float
    decay_mult: float
    own: tuple[int, int] | None = None
    """The elements that this rank updates, alone, if they are divided among ranks."""
    given: dict[str, float] = field(default_factory=dict)
    """The multipliers that the prototxt states (users of a shared parameter must agree)."""


class ArenaLayout:
    """Where each parameter's segment lies.

    It is never empty: who updates or exchanges an arena needs no case for a net without parameters.
    """

    def __init__(
        self, parameters: Sequence[Parameter], sizes: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """parameters: in backward order. sizes: by name, elements that one takes with its padding,
        where that is not known yet."""
        self.segments: list[tuple[int, int, Parameter]] = []
        """(start, stop, parameter), in elements; the padding (always zero) after it included."""
        self.shared, self.learned = 0, 0
        """The elements of parameters that learn, and are not divided among ranks: they lie first.
        Of all that learn: they lie before the others."""
        offset = 0
        for parameter in sorted(
            _neighbours(parameters), key=lambda each: (not each.lr_mult, each.own is not None)
        ):
            data = parameter.blob.data
            size = (
                max(data.size, sizes.get(parameter.name, 0)) if data.layout_undecided else data.size
            )
            stop = offset + -(-size // ALIGNMENT) * ALIGNMENT
            self.segments.append((offset, stop, parameter))
            offset = stop
            if parameter.lr_mult:
                self.learned = stop
                self.shared = self.shared if parameter.own else stop
        self.size = max(offset, ALIGNMENT)

    def owned(self, first: int, last: int) -> Iterator[tuple[int, int, Parameter]]:
        """The segments, without what other ranks update, that lie in elements first .. last - 1;
        (start, stop) as far as they do."""
        for start, stop, parameter in self.segments:
            if parameter.own is not None:
                start, stop = start + parameter.own[0], start + parameter.own[1]
            start, stop = max(start, first), min(stop, last)
            if start < stop:
                yield start, stop, parameter

    @property
    def is_split(self) -> bool:
        """Whether parameters that learn are divided among ranks."""
        return self.shared < self.learned

    def __len__(self) -> int:
        """The number of elements, padding included."""
        return self.size


class Arena(ArenaLayout):
    """Two flat tensors, `data` and `diff`, in which every parameter has a segment."""

    def __init__(self, backend: Backend, parameters: list[Parameter], *, gradients: bool) -> None:
        """parameters: in backward order. gradients: whether `diff` gets memory."""
        super().__init__(parameters)
        self.data = self._allocate(backend, "data", len(self))
        self.diff = Tensor((0,), name="arena.diff", persistent=True)
        if gradients:
            self.give_gradients(backend)

    def give_gradients(self, backend: Backend) -> None:
        """Give `diff` memory, if it has none."""
        if not self.diff.size:
            self.diff = self._allocate(backend, "diff", len(self))

    def _allocate(self, backend: Backend, side: str, size: int) -> Tensor:
        whole = Tensor((size,), name=f"arena.{side}", persistent=True)
        nbytes = backend.nbytes(whole)
        memory = backend.allocate(nbytes)
        memory[:] = 0
        backend.place(whole, memory, 0)
        for start, _, parameter in self.segments:
            tensor: Tensor = getattr(parameter.blob, side)
            backend.place(tensor, memory, start * nbytes // size)
            if tensor.whole is not None and tensor is tensor.whole.parts[0]:
                backend.place(tensor.whole, memory, start * nbytes // size)
        return whole


def _neighbours(parameters: Sequence[Parameter]) -> Iterator[Parameter]:
    """The parameters in their order, but those that are parts of one tensor together, as they lie
    in it, where the last of them was."""
    waiting: dict[Tensor, Parameter] = {}
    for parameter in parameters:
        waiting[parameter.blob.data] = parameter
        whole = parameter.blob.data.whole
        parts = whole.parts if whole is not None else (parameter.blob.data,)
        if waiting.keys() >= {*parts}:
            yield from (waiting.pop(part) for part in parts)


class Buffer:
    """Another float32 number for each element of an arena (history, residuals), 0 at the start.

    flat: all of them, laid out as the arena is. parts: those of each parameter, in its shape and
    memory layout, in the order of `parameters`.
    """

    def __init__(
        self, arena: Arena, backend: Backend, name: str, parameters: Sequence[Parameter]
    ) -> None:
        self.name = name
        self._backend = backend
        self.flat = Tensor((len(arena),), name=name, persistent=True)
        memory = backend.allocate_for(self.flat)
        backend.write(self.flat, 0)
        item = backend.nbytes(self.flat) // len(arena)
        starts = {id(parameter): start for start, _, parameter in arena.segments}
        self.parts: list[Tensor] = []
        for parameter in parameters:
            data = parameter.blob.data
            name = f"{self.name}.{parameter.name}"
            part = Tensor(data.shape, name=name, persistent=True, like=data)
            backend.place(part, memory, starts[id(parameter)] * item)
            self.parts.append(part)

    def read(self) -> list[np.ndarray]:
        """The values of each parameter, in its shape."""
        return [self._backend.read(part) for part in self.parts]

    def write(self, values: Iterable[np.ndarray]) -> None:
        """The reverse of `read`."""
        for part, array in zip(self.parts, values, strict=True):
            self._backend.write(part, array)
