"""The table of the primitives that NumPy implements, and what each may be given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..primitives.recording import Primitive
from ..tensor import Run, Shape, Tensor
from .host import Host


@dataclass(frozen=True)
class Context:
    """What NumPy prepares a call with: the backend's random state, workers and float type, and the
    call's scratch memory."""

    backend: Host
    call: Primitive

    def temporary(self, shape: Shape, dtype: str = "float32") -> Tensor:
        """Scratch memory that lives only while the call runs."""
        return self.call.temporary(shape, dtype)


@dataclass(frozen=True)
class Implementation:
    """A function `(ctx, a) -> Step` of a call `a`, and what it copes with.

    agnostic: whether, for this call, it treats all elements alike and keeps zeros (the padding of
    blocked layouts) zero. It then runs on flat arrays of any one layout.
    accumulates: it honours `a.accumulates` itself.
    """

    function: Callable[..., Run]
    agnostic: Callable[[Any], bool]
    accumulates: bool


IMPLEMENTATIONS: dict[str, Implementation] = {}


def primitive(
    *,
    agnostic: bool | Callable[[Any], bool] = False,
    accumulates: bool = False,
) -> Callable[[Callable[..., Run]], Callable[..., Run]]:
    """Register the decorated function under its name (without a trailing underscore)."""

    def register(function: Callable[..., Run]) -> Callable[..., Run]:
        condition = agnostic if callable(agnostic) else lambda a: bool(agnostic)
        name = function.__name__.rstrip("_")
        if name in IMPLEMENTATIONS:
            raise ValueError(f"primitive {name!r} is implemented twice")
        IMPLEMENTATIONS[name] = Implementation(function, condition, accumulates)
        return function

    return register


def direct(
    *, agnostic: bool | Callable[[Any], bool] = False
) -> Callable[[Callable[[Context, Any], None]], Callable[..., Run]]:
    """Register the decorated function, which does the work itself: the step of a call runs it."""

    def register(work: Callable[[Context, Any], None]) -> Callable[..., Run]:
        @functools.wraps(work)
        def prepare(ctx: Context, a: Any) -> Run:
            return functools.partial(work, ctx, a)

        return primitive(agnostic=agnostic)(prepare)

    return register
