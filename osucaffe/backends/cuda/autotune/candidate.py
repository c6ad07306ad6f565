"""Owns candidates, which compute a call, and providers, which know the candidates for a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...tensor import Step, sequence

if TYPE_CHECKING:
    from ..registry import CudaCall


@dataclass(frozen=True)
class Candidate:
    """A way to compute a call.

    name: tells it from the provider's others; it is remembered, and logged.
    make: makes the step for the call, or for one like it on stand-ins for its tensors.
    estimate: milliseconds that it will hardly stay below.
    """

    name: str
    make: Callable[[CudaCall], Step]
    estimate: float = 0.0

    def then(self, step: Callable[[CudaCall], Step]) -> Candidate:
        """This, followed by another step of the call."""
        return replace(self, make=lambda call: sequence([self.make(call), step(call)]))


class Provider:
    """What computes a call by one library or kernel; its variants are the candidates.

    The tuner asks providers in their order. name: what it is called in logs and in what is
    remembered, without a colon. eager: whether the tuner lets it build what its candidates need as
    soon as the call is known, or only when it is asked.
    """

    name: str
    eager: bool = True

    def worthwhile(self, best: float) -> bool:
        """Whether to ask for its candidates, where the best so far takes so many milliseconds
        (infinite: there is none yet)."""
        return True

    def candidates(self) -> Iterable[Candidate]:
        """Those that this device can run, the most promising first."""
        raise NotImplementedError

    def build(self, call: CudaCall) -> None:
        """Begin to build what the candidates need, in the background: kernels begin to be compiled
        when a step is made that launches them."""
        for candidate in self.candidates():
            candidate.make(call.copy())

    def build_named(self, call: CudaCall, name: str) -> None:
        """Begin to build what the candidate of this name needs."""
        if found := self.named(name):
            found.make(call.copy())

    def chosen(self, name: str) -> None:
        """What to do when the candidate of this name was chosen, and others may go."""

    def named(self, name: str) -> Candidate | None:
        """The candidate of this name, if there still is one."""
        return next((each for each in self.candidates() if each.name == name), None)


class Spare(Provider):
    """A provider that is asked only where none before it has a candidate that works."""

    eager = False

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.name = provider.name

    def worthwhile(self, best: float) -> bool:
        return best == float("inf")

    def candidates(self) -> Iterable[Candidate]:
        return self._provider.candidates()

    def build(self, call: CudaCall) -> None:
        self._provider.build(call)

    def build_named(self, call: CudaCall, name: str) -> None:
        self._provider.build_named(call, name)

    def chosen(self, name: str) -> None:
        self._provider.chosen(name)

    def named(self, name: str) -> Candidate | None:
        return self._provider.named(name)
