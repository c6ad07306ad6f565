"""What a primitive is: a class of calls, whose fields are its arguments; and the list of calls that
layers record.

An object of such a class is a call, from the layer that records it through every pass to the
backend that prepares it. The annotation of a field is its role: Read, Write, ReadWrite (read, then
written in place), or WriteOrAdd (overwritten, or added to when `accumulates` names it). `Reads`,
`Writes` are lists; `... | None` may be None; all others are settings. Axes count from the first, 0.
What begins with Fused is given by passes alone, for backends that say that they fuse.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, dataclass_transform

from ... import plugins
from ...errors import UserError
from ..tensor import Shape, Tensor, map_tensors, tensors_in

Read = Tensor
Write = Tensor
ReadWrite = Tensor
WriteOrAdd = Tensor
Reads = list[Tensor]
Writes = list[Tensor]
ReadWrites = list[Tensor]
FusedRead = Tensor
FusedReads = list["Tensor | None"]
FusedWrite = Tensor
FusedFlag = bool
_READ = ("Read", "ReadWrite", "FusedRead")
_WRITTEN = ("Write", "ReadWrite", "WriteOrAdd", "FusedWrite")


PRIMITIVES: dict[str, type[Primitive]] = {}
"""Every primitive by its name, in the order in which they are declared."""


@dataclass_transform(eq_default=False)
class Primitive:
    """A call. Its arguments are declared as the fields of a dataclass are: in their order; those of
    a class with `kw_only`, or after `_: KW_ONLY`, are given by name only. (They are not dataclasses
    because a hundred of these take 20 ms to make, at each start.) An `abstract` class is not a
    primitive, but has the arguments that several share.

    Of the class: name, which is the class's in other letters (TopK is `top_k`); roles: what each
    field is annotated as (`Read` of `Reads | None`); read_fields, written_fields: those that are
    tensors; positional: those that need no name.

    Of a call:
    layer: what messages call the layer that recorded it; others may be called the same.
    position: that layer's place in its net (-1: it is not a layer's call).
    diffs: by its fields, the gradients of their tensors (None: not needed), where it may state its
    own (see `Layer.derived`); else empty.
    layers: the positions of those whose gradients are in its own: it has been fused with others'.
    accumulates: the fields to add to instead of overwriting. The recorder sets it for tensors that
    are sums, where an earlier call (or sub-iteration) may have written them.
    overlap: how many of the following calls this one may overlap with (0: it runs in its turn).
    launch_with_next: whether such a call begins only together with the next that is not marked so.
    fused: calls that were fused into it: it does their work too.
    shares_work_with: calls that stay, but with which it has exchanged work or order.
    scratch: memory that lives only while it runs.
    implementation: what computes it, as its backend calls it, once that has prepared it ("": there
    was no choice).
    """

    name: ClassVar[str]
    roles: ClassVar[dict[str, str]] = {}
    read_fields: ClassVar[tuple[str, ...]]
    written_fields: ClassVar[tuple[str, ...]]
    positional: ClassVar[tuple[str, ...]] = ()

    layer = ""
    position = -1
    layers = range(0)
    accumulates: frozenset[str] = frozenset()
    overlap = 0
    launch_with_next = False
    implementation = ""

    def __init_subclass__(cls, abstract: bool = False, kw_only: bool = False) -> None:
        cls.roles = dict(cls.roles)
        # Annotations are strings here (`from __future__ import annotations`).
        for name, annotation in vars(cls).get("__annotations__", {}).items():
            if annotation == "KW_ONLY":
                kw_only = True
                continue
            cls.roles[name] = annotation.split(" ")[0].removesuffix("s")
            if not kw_only:
                cls.positional += (name,)
        cls.read_fields = tuple(name for name, role in cls.roles.items() if role in _READ)
        cls.written_fields = tuple(name for name, role in cls.roles.items() if role in _WRITTEN)
        cls.name = re.sub("(?<=.)(?=[A-Z])", "_", cls.__name__).lower()
        if not abstract:
            PRIMITIVES[cls.name] = cls

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(self.positional, args, strict=False))
        wrong = [name for name in kwargs if name in given or name not in self.roles]
        missing = [
            name
            for name in self.roles
            if name not in given and name not in kwargs and not hasattr(self, name)
        ]
        if wrong or missing or len(args) > len(self.positional):
            raise TypeError(f"{self.name}: wrong arguments {wrong}, missing arguments {missing}")
        vars(self).update(given, **kwargs)
        self.fused: list[Primitive] = []
        self.shares_work_with: list[Primitive] = []
        self.scratch: list[Tensor] = []
        self.diffs: dict[str, Any] = {}
        self.check()

    def check(self) -> None:
        """Raise ValueError where an argument has a value that it cannot have."""

    def gradient(self, program: Recorder) -> None:
        """Record the gradients of what it reads, from `diffs` to `diffs`; by default, there are
        none."""

    def __repr__(self) -> str:
        return f"{self.name} of {self.layer or 'no layer'}"

    def read_tensors(self) -> Iterator[Tensor]:
        """The tensors that it reads, those in lists, too."""
        return tensors_in(getattr(self, name) for name in self.read_fields)

    def written_tensors(self) -> Iterator[Tensor]:
        """The tensors that it writes."""
        return tensors_in(getattr(self, name) for name in self.written_fields)

    def fuse(self, other: Primitive) -> None:
        """Note that it does what another call did, which goes."""
        self.fused += [other, *other.fused]
        self.shares_work_with += other.shares_work_with

    def share_work(self, *others: Primitive) -> None:
        """Note that it does a part of what others did, or that they have changed turns."""
        self.shares_work_with += others

    def temporary(self, shape: Shape, dtype: str = "float32") -> Tensor:
        """Scratch memory that lives only while this call runs."""
        tensor = Tensor(shape, dtype, f"{self.layer}.{self.name}.scratch")
        self.scratch.append(tensor)
        return tensor

    def changed(self, **fields: Any) -> Self:
        """The same call with other values in some fields; its scratch memory is one with this."""
        call = copy.copy(self)
        vars(call).update(fields)
        return call

    def on(self, function: Callable[[str, Tensor], Tensor]) -> Self:
        """The same call on what a function gives for the field and the tensor of each."""
        fields = (*self.read_fields, *self.written_fields)
        return self.changed(
            **{name: map_tensors(partial(function, name), getattr(self, name)) for name in fields}
        )


def implementation(call: Primitive, table: dict[str, Any], backend: str) -> Any:
    """What a backend's table has for a call: that of another package is in a module of the
    backend's name, beside the primitive's. UserError where there is none."""
    found = plugins.provided(table, type(call), backend)
    if found is None:
        raise UserError(
            f'layer "{call.layer}": no implementation of {call.name} on backend {backend}'
        )
    return found


_Arguments = ParamSpec("_Arguments")


def recorded(
    declaration: Callable[_Arguments, Primitive],
) -> Callable[Concatenate[Recorder, _Arguments], None]:
    """A method that records a call of the primitive, given its arguments."""

    def record(self: Recorder, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        self.record(declaration(*args, **kwargs))

    record.__doc__ = declaration.__doc__
    return record


class Recorder:
    """A list of calls in the making.

    layer, position, layers: of what is being recorded, as a call has them (see `enter`).
    accumulate: add to every parameter's gradient, which others set to 0 where a sum begins.
    """

    def __init__(self, *, accumulate: bool = False) -> None:
        self.calls: list[Primitive] = []
        self.enter()
        self.accumulate = accumulate
        self._written: set[Tensor] = set()

    def enter(self, layer: str = "", position: int = -1) -> None:
        """What is recorded from now on is this layer's; by default no layer's."""
        self.layer, self.position = layer, position
        self.layers = range(position, position + 1)

    def record(self, call: Primitive) -> None:
        """Append a call, unless nothing that it writes has elements. ValueError for an argument
        that is not a layer's."""
        call.layer, call.position = self.layer, self.position
        call.layers = self.layers
        for name, role in call.roles.items():
            value = getattr(call, name)
            if value and role.startswith("Fused"):
                raise ValueError(f"{call.name}: only the fusion pass gives {name}")
            if isinstance(value, list):  # which the layer may change: a call keeps what it held
                setattr(call, name, [*value])
        written = [*call.written_tensors()]
        if call.name == "host" or not written or any(tensor.count for tensor in written):
            self.add(call)

    def add(self, call: Primitive) -> None:
        """Append a call. A sum that was written before (of shared parameters) is added to."""
        call.accumulates = frozenset(
            name
            for name, role in call.roles.items()
            if role == "WriteOrAdd"
            and (target := getattr(call, name)) is not None
            and target.is_sum
            and (self.accumulate or self.has_written(target))
        )
        self._written.update(tensor.owner for tensor in call.written_tensors())
        self.calls.append(call)

    def extend(self, calls: Iterable[Primitive]) -> None:
        """Append calls that were recorded before, after the same others."""
        for call in calls:
            self._written.update(tensor.owner for tensor in call.written_tensors())
            self.calls.append(call)

    def has_written(self, tensor: Tensor) -> bool:
        """Whether a call recorded so far writes this tensor (or the one that it views)."""
        return tensor.owner in self._written
