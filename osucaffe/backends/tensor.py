"""Owns tensors that get their memory late, the calls that read and write them, and their list.

A layer runs once, when the net is built: it *records* calls of primitives (`Program`). A backend
then prepares each call (it picks memory layouts and asks for scratch), the memory plan places the
tensors, and from then on an iteration only replays the prepared steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Shape = tuple[int, ...]
Step = Callable[[], None]


def sequence(steps: Sequence[Step]) -> Step:
    """One step that runs these."""
    if len(steps) == 1:
        return steps[0]

    def step() -> None:
        for each in steps:
            each()

    return step


class Tensor:
    """An array of a net. `shape` is its meaning; `layout` is how it lies in memory.

    `array` is None until the tensor is placed. In row-major layout (None) it is an array of
    `shape`; in any other layout it is flat, with `layout.size` elements, padding included.

    flexible: the backend may choose a layout for it. Otherwise it stays row-major.
    persistent: it keeps its own memory for the life of the net (never shared by the memory plan).
    like: take the layout of this tensor (a gradient lies in memory as its data does).
    base: the tensor whose memory this one views under another shape, from its element `start` on;
    both are row-major. views: those of this one.
    whole, parts: a tensor whose memory is that of its parts, one behind the other (see `join`).
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
    def is_open(self) -> bool:
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
        view.start = self.start + start
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
    """A tensor of the elements of these, one behind the other along the first axis. It has their
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


@dataclass(eq=False)
class Call:
    """One call of a primitive: its tensors by argument name, its settings, and whose it is.

    layer: what messages call the layer that recorded it; others may be called the same.
    position: that layer's place in its net (-1: it is no layer's call).
    overlap: how many of the following calls this one may overlap with (0: it runs in its turn).
    held: whether such a call begins only when the next of them that is not held does.
    fused: calls that went in fusion: it does their work besides.
    trades: calls that stay, but with which it has exchanged work, or its turn.
    implementation: what computes it, as its backend calls it, once that has prepared it ("": there
    was no choice).
    accumulates: names of the outputs to add to instead of overwriting. The recorder sets it
    for parameter gradients that an earlier call (or sub-iteration) has already written.
    """

    name: str
    reads: dict[str, Any]
    writes: dict[str, Any]
    settings: dict[str, Any]
    layer: str = ""
    accumulates: frozenset[str] = frozenset()
    scratch: list[Tensor] = field(default_factory=list)
    overlap: int = 0
    held: bool = False
    fused: list[Call] = field(default_factory=list)
    trades: list[Call] = field(default_factory=list)
    position: int = -1
    implementation: str = ""

    def fuse(self, other: Call) -> None:
        """Note that it does what another call did, which goes."""
        self.fused += [other, *other.fused]
        self.trades += other.trades

    def trade(self, *others: Call) -> None:
        """Note that it does a part of what others did, or that they have changed turns."""
        self.trades += others

    def read_tensors(self) -> Iterator[Tensor]:
        return tensors_in(self.reads.values())

    def written_tensors(self) -> Iterator[Tensor]:
        return tensors_in(self.writes.values())

    def temporary(self, shape: Shape, dtype: str = "float32") -> Tensor:
        """Scratch memory that lives only while this call runs."""
        tensor = Tensor(shape, dtype, f"{self.layer}.{self.name}.scratch")
        self.scratch.append(tensor)
        return tensor


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
