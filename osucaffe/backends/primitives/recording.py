"""Owns what a declaration of a primitive is, and the list of calls that layers record.

A primitive is a class of its arguments, so that its signature stands in one place: layers give
them to a method of `Program`, and each backend's function gets the object. The annotation of an
argument is its role: Read, Write, ReadWrite (read, then written in place), or Gradient (a
parameter's gradient: overwritten, or added to when `call.accumulates` names it). `Reads`, `Writes`
are lists; `... | None` may be None; all others are settings. Axes count from the first, 0. What
begins with Fused is given by the fusion pass alone, for backends that say that they fuse; in other
calls it is not there at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Concatenate, ParamSpec, dataclass_transform

from ..tensor import Call, Tensor

Read = Tensor
Write = Tensor
ReadWrite = Tensor
Gradient = Tensor
Reads = list[Tensor]
Writes = list[Tensor]
ReadWrites = list[Tensor]
FusedRead = Tensor
FusedReads = list["Tensor | None"]
FusedWrite = Tensor
FusedFlag = bool
FusedCall = Call
_READ = ("Read", "ReadWrite", "FusedRead")
_WRITTEN = ("Write", "ReadWrite", "Gradient", "FusedWrite")


PRIMITIVES: dict[str, type[Primitive]] = {}
"""Every primitive by its name, in the order in which they are declared."""


@dataclass_transform()
class Primitive:
    """The arguments of one call, declared as the fields of a dataclass are: in their order; those
    of a class with `kw_only`, or behind `_: KW_ONLY`, are given by name only. (They are no
    dataclasses because a hundred of these take 20 ms to make, at each start.) An `abstract` class
    is no primitive, but has the arguments that several share.

    name: of the primitive, which is the class's in other letters (TopK is `top_k`); kinds: what its
    fields are annotated as (`Read` of `Reads | None`); fused: those that only the fusion pass
    gives; positional: those that need no name.
    """

    name: ClassVar[str]
    kinds: ClassVar[dict[str, str]] = {}
    fused: ClassVar[frozenset[str]]
    positional: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, abstract: bool = False, kw_only: bool = False) -> None:
        cls.kinds = dict(cls.kinds)
        # Annotations are strings here (`from __future__ import annotations`).
        for name, annotation in vars(cls).get("__annotations__", {}).items():
            if annotation == "KW_ONLY":
                kw_only = True
                continue
            cls.kinds[name] = annotation.split(" ")[0].removesuffix("s")
            if not kw_only:
                cls.positional += (name,)
        cls.fused = frozenset(name for name, kind in cls.kinds.items() if kind.startswith("Fused"))
        cls.name = re.sub("(?<=.)(?=[A-Z])", "_", cls.__name__).lower()
        if not abstract:
            PRIMITIVES[cls.name] = cls

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(self.positional, args, strict=False))
        wrong = [name for name in kwargs if name in given or name not in self.kinds]
        missing = [
            name
            for name in self.kinds
            if name not in given and name not in kwargs and not hasattr(self, name)
        ]
        if wrong or missing or len(args) > len(self.positional):
            raise TypeError(f"{self.name}: wrong arguments {wrong}, missing arguments {missing}")
        vars(self).update(given, **kwargs)
        self.check()

    def check(self) -> None:
        """Raise ValueError where an argument has a value that it cannot have."""


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

    layer, position: of the layer that is being recorded, as a Call has them (see `enter`).
    accumulate: add to every parameter gradient (a further sub-iteration of `iter_size`).
    """

    def __init__(self, *, accumulate: bool = False) -> None:
        self.calls: list[Call] = []
        self.enter()
        self.accumulate = accumulate
        self._written: set[int] = set()

    def enter(self, layer: str = "", position: int = -1) -> None:
        """What is recorded from now on is this layer's; by default no layer's."""
        self.layer, self.position = layer, position

    def record(self, arguments: Primitive) -> None:
        """Append a call of a primitive, unless nothing that it writes has elements. ValueError for
        an argument that is not a layer's."""
        given = {name: getattr(arguments, name) for name in arguments.kinds}
        # A layer may go on with its list: a call keeps what it held.
        given |= {name: [*value] for name, value in given.items() if isinstance(value, list)}
        for name in arguments.fused:
            if given.pop(name):
                raise ValueError(f"{arguments.name}: only the fusion pass gives {name}")
        kinds = {
            name: kind for name, kind in arguments.kinds.items() if given.get(name) is not None
        }
        reads = {name: given[name] for name, kind in kinds.items() if kind in _READ}
        writes = {name: given[name] for name, kind in kinds.items() if kind in _WRITTEN}
        settings = {name: value for name, value in given.items() if name not in reads | writes}
        call = Call(arguments.name, reads, writes, settings, self.layer, position=self.position)
        written = [*call.written_tensors()]
        if written and call.name != "host" and not any(tensor.count for tensor in written):
            return
        self.add(call, [name for name in writes if kinds[name] == "Gradient"])

    def add(self, call: Call, gradients: Sequence[str] = ()) -> None:
        """Append a call. A gradient that was written before (shared parameters) is added to."""
        call.accumulates = frozenset(
            name for name in gradients if self.accumulate or self.has_written(call.writes[name])
        )
        self._written.update(id(tensor.owner) for tensor in call.written_tensors())
        self.calls.append(call)

    def has_written(self, tensor: Tensor) -> bool:
        """Whether a call recorded so far writes this tensor (or the one that it views)."""
        return id(tensor.owner) in self._written


def arguments(name: str, *given: Mapping[str, Any]) -> Primitive:
    """The arguments of a primitive as it declares them, from mappings of their names."""
    return PRIMITIVES[name](**{key: value for each in given for key, value in each.items()})
