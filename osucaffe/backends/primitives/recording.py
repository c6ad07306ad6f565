"""Owns what turns the declaration of a primitive into a method that records a call of it.

The annotation of an argument is its role: Read, Write, Update (read, then written in place), or
Gradient (a parameter's gradient: overwritten, or added to when `call.accumulates` names it).
`Reads`, `Writes` are lists; `... | None` may be None; what stands after the `*` is a setting.
FusedRead, FusedReads and FusedFlag are arguments that only the fusion pass gives, for backends that
say that they fuse; in other calls they are not there at all.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..tensor import Call, Tensor

Read = Tensor
Write = Tensor
Update = Tensor
Gradient = Tensor
Reads = list[Tensor]
Writes = list[Tensor]
Updates = list[Tensor]
FusedRead = Tensor
FusedReads = list["Tensor | None"]
FusedFlag = bool
_Declaration = TypeVar("_Declaration", bound=Callable[..., None])

NAMES: list[str] = []
"""Every primitive, in the order in which they are declared."""
FUSED: dict[str, frozenset[str]] = {}
"""By primitive, the arguments that only the fusion pass gives."""


def primitive(declaration: _Declaration) -> _Declaration:
    """Turn a declaration (a signature and a docstring) into a method that records the call."""
    signature = inspect.signature(declaration)
    # Annotations are strings here (`from __future__ import annotations`): "Read | None" -> "Read".
    kinds = {n: p.annotation.split(" ")[0] for n, p in signature.parameters.items() if n != "self"}
    fused = frozenset(name for name, kind in kinds.items() if kind.startswith("Fused"))
    roles = {
        name: kind.removesuffix("s")
        for name, kind in kinds.items()
        if signature.parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
    }
    FUSED[declaration.__name__] = fused
    NAMES.append(declaration.__name__)

    @functools.wraps(declaration)
    def record(self: Recorder, *tensors: Any, **settings: Any) -> None:
        bound = signature.bind(self, *tensors, **settings)
        bound.apply_defaults()
        given = {name: value for name, value in bound.arguments.items() if name in kinds}
        for name in fused:
            if given.pop(name):
                raise ValueError(f"{declaration.__name__}: only the fusion pass gives {name}")
        tensor_roles = {n: role for n, role in roles.items() if given.get(n) is not None}
        self.add(
            Call(
                declaration.__name__,
                reads={n: given[n] for n, r in tensor_roles.items() if r in ("Read", "Update")},
                writes={n: given[n] for n, r in tensor_roles.items() if r != "Read"},
                settings={n: value for n, value in given.items() if n not in tensor_roles},
                layer=self.layer,
                position=self.position,
            ),
            gradients=[n for n, r in tensor_roles.items() if r == "Gradient"],
        )

    return record  # type: ignore[return-value]


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

    def add(self, call: Call, gradients: Sequence[str] = ()) -> None:
        """Append a call. A gradient that was written before (shared parameters) is added to."""
        call.accumulates = frozenset(
            name for name in gradients if self.accumulate or self.has_written(call.writes[name])
        )
        self._written.update(id(tensor.base or tensor) for tensor in call.written_tensors())
        self.calls.append(call)

    def has_written(self, tensor: Tensor) -> bool:
        """Whether a call recorded so far writes this tensor (or the one that it views)."""
        return id(tensor.base or tensor) in self._written
