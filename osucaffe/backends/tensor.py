"""Tensors, which get their memory late, and steps, which work on it.

A layer runs once, when the net is built: it *records* calls of primitives (`Program`). A backend
then prepares each call (it picks memory layouts and asks for scratch), the memory plan places the
tensors, and from then on an iteration only replays the prepared steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]
Run = Callable[[], None]
"""What is done in an iteration, without arguments: they were known before."""


@dataclass(eq=False, slots=True)
class Step:
    """What a backend has prepared: calling it does the work.

    implementation: the library's code that it executes ("": none of a library's).
    call: the call that it computes, where that may be on one thread or on all of them.
    alone: the step inside, where that runs on one thread.
    """

    run: Run
    implementation: str = ""
    call: Any = None
    alone: Step | None = None

    def __call__(self) -> None:
        self.run()


def sequence(steps: Sequence[Run]) -> Run:
    """What runs these, one after the other."""
    runs = [step.run if isinstance(step, Step) else step for step in steps]
    if len(runs) == 1:
        return runs[0]

    def run() -> None:
        for each in runs:
            each()

    return run


class Tensor:
    """An array of a net. `shape` is its meaning; `layout` is how it lies in memory.

    `array` is None until the tensor is placed. In row-major layout (None) it is an array of
    `shape`; in any other layout it is flat, with `layout.size` elements, padding included.

    flexible: the backend may choose a layout for it. Otherwise it stays row-major.
    persistent: it keeps its own memory for the life of the net (never shared by the memory plan).
    is_sum: it is a parameter's gradient, to which all calls that have a part of it add (the first
    may overwrite what was there).
    like: take the layout of this tensor (a gradient lies in memory as its data does).
    base: the tensor whose memory this one views under another shape, from its element `start` on;
    both are row-major. views: those of this one.
    whole, parts: a tensor whose memory is that of its parts, one after the other (see `join`).
    """

    placements = 0
    """How often tensors have been given memory: as long as it stays, all lie where they were."""

    def __init__(
        self,
        shape: Shape,
        dtype: str = "float32",
        name: str = "",
        *,
        flexible: bool = False,
        persistent: bool = False,
        like: Tensor | None = None,
        base: Tensor | None = None,
    ) -> None:
        self.shape = tuple(int(extent) for extent in shape)
        self.dtype = dtype
        self.name = name
        self.flexible = flexible
        self.persistent = persistent
        self.is_sum = False
        self.like = like
        self.base = base
        self.start = 0
        self._layout: Any = None
        self.array: Any = None
        self.address = 0
        self.whole: Tensor | None = None
        self.parts: tuple[Tensor, ...] = ()
        self.views: list[Tensor] = []

    @property
    def root(self) -> Tensor:
        """The tensor whose layout decides this one's."""
        return self if self.like is None else self.like.root

    @property
    def owner(self) -> Tensor:
        """The tensor that has the memory: the one that this views, or this."""
        return self.base or self

    @property
    def owners(self) -> tuple[Tensor, ...]:
        """The same, where several have the memory."""
        return self.parts or (self.owner,)

    @property
    def layout_undecided(self) -> bool:
        """Whether its layout is still to be chosen."""
        return self.root.flexible

    @property
    def viewed(self) -> bool:
        """Whether others view its memory."""
        return bool(self.views)

    @property
    def layout(self) -> Any:
        return self.root._layout

    @layout.setter
    def layout(self, layout: Any) -> None:
        """Choose how it lies in memory. Allowed once, by the first call that touches it."""
        if not self.flexible or self.like is not None:
            raise ValueError(f"the layout of tensor {self.name!r} is not open")
        self._layout = layout
        self.flexible = False
        for part in self.parts:
            part._layout = layout and layout.part(part.shape)

    @property
    def count(self) -> int:
        """The number of elements, without padding."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """The number of elements in memory, padding included."""
        return self.count if self.layout is None else self.layout.size

    def place(self, flat: Any, address: int) -> None:
        """Give it memory: a flat array of `size` elements that begins at `address`."""
        self.array = flat.reshape(self.shape) if self.layout is None else flat
        self.address = address
        Tensor.placements += 1
        for view in self.views:
            view.place(*view._inside(flat, address))

    def view(self, shape: Shape, start: int = 0) -> Tensor:
        """The same memory under another shape of equally many elements; or of fewer, from element
        `start` on."""
        base = self.owner
        (base.like or base).flexible = False
        view = Tensor(shape, self.dtype, self.name, persistent=self.persistent, base=base)
        view.start, view.is_sum = self.start + start, self.is_sum
        base.views.append(view)
        if base.array is not None:  # a parameter of another net, say
            view.place(*view._inside(base.array.reshape(-1), base.address))
        return view

    def _inside(self, flat: Any, address: int) -> tuple[Any, int]:
        """Of the memory of `base` what this views, as `place` takes it."""
        piece = flat[self.start : self.start + self.count]
        return piece, address + self.start * piece.itemsize

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"Tensor({self.name or '?'} {shape} {self.dtype})"


def join(parts: Sequence[Tensor]) -> Tensor:
    """A tensor of the elements of these, one after the other along the first axis. It has their
    memory, which must be adjacent (the arena sees to that), and its layout decides theirs."""
    whole = parts[0].whole
    if whole is None or whole.parts != (*parts,):
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        likes = [part.like for part in parts if part.like is not None]
        whole = Tensor(
            shape,
            name=f"{parts[0].name} and others",
            flexible=all(part.flexible for part in parts),
            persistent=True,
            like=join(likes) if likes else None,
        )
        whole.parts = (*parts,)
        for part in parts:
            part.whole, part.flexible = whole, False
    return whole


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """What a function gives for a tensor of a call, or for each of a list; None stays."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return [map_tensors(function, each) for each in value]
    return value


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments of a call, and in those that are lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
