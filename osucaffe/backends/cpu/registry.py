"""Owns the table of the primitives that NumPy implements, and what each may be given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..tensor import Call, Step
from .host import Host


@dataclass(eq=False)
class CpuCall(Call):
    """A call with the backend that prepares it: its random state, workers and float type."""

    backend: Host = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Implementation:
    """A function `(call, a) -> Step`, a: its arguments as declared, and what it copes with.

    agnostic: whether, with these settings, it treats all elements alike and keeps zeros (the
    padding of blocked layouts) zero. It then runs on flat arrays of any one layout.
    accumulates: it honours `call.accumulates` itself.
    """

    function: Callable[..., Step]
    agnostic: Callable[[dict[str, Any]], bool]
    accumulates: bool


IMPLEMENTATIONS: dict[str, Implementation] = {}


def primitive(
    *,
    agnostic: bool | Callable[[dict[str, Any]], bool] = False,
    accumulates: bool = False,
) -> Callable[[Callable[..., Step]], Callable[..., Step]]:
    """Register the decorated function under its name (without a trailing underscore)."""

    def register(function: Callable[..., Step]) -> Callable[..., Step]:
        condition = agnostic if callable(agnostic) else lambda settings: bool(agnostic)
        name = function.__name__.rstrip("_")
        if name in IMPLEMENTATIONS:
            raise ValueError(f"primitive {name!r} is implemented twice")
        IMPLEMENTATIONS[name] = Implementation(function, condition, accumulates)
        return function

    return register


def direct(
    *, agnostic: bool | Callable[[dict[str, Any]], bool] = False
) -> Callable[[Callable[[CpuCall, Any], None]], Callable[..., Step]]:
    """Register the decorated function, which does the work itself: the step of a call runs it."""

    def register(work: Callable[[CpuCall, Any], None]) -> Callable[..., Step]:
        @functools.wraps(work)
        def prepare(call: CpuCall, a: Any) -> Step:
            return functools.partial(work, call, a)

        return primitive(agnostic=agnostic)(prepare)

    return register
