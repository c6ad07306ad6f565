"""Owns what is built of a net for one set of shapes: its blobs, programs, steps and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...backends.backend import Backend
from ...backends.tensor import Call, Step, Tensor
from ...blob import Blob
from ...labels import Labels
from ..assembly import Assembly
from .constants import Constants
from .editing import Programs
from .memory import MemoryPlan
from .verify import Verifier


@dataclass
class Report:
    """What a pass did. before, after: the numbers of calls in each program."""

    name: str
    before: list[int]
    after: list[int]
    did: str


@dataclass
class Build:
    """What is built, pass by pass.

    labels: of the tops without bottoms that hold them. total: where the sum of the losses goes.
    backwards: for each form of backward, whether it accumulates. seeds, scale, seedable: see
    `record_backward`. again: the net has been built before, for other shapes. constants: of a net
    that only runs forward, what holds as long as its parameters do.

    programs: forward, and the forms of backward. steps: of each, the calls with their steps; by
    layer: the steps alone, as `by_layer` sorts them. replay: all of forward as one, while the
    memory pool has replay_size. note: what the pass that runs has to say. verifier: what checks the
    programs behind each pass, where that is asked for.
    """

    parts: Assembly
    labels: dict[str, Labels]
    backend: Backend
    inspectable: bool
    total: Tensor
    backwards: Sequence[bool]
    seeds: Mapping[str, Tensor]
    scale: Tensor | None
    seedable: Iterable[Blob]
    again: bool = False
    constants: Constants | None = None
    programs: Programs = field(default_factory=list)
    steps: list[list[tuple[Call, Step]]] = field(default_factory=list)
    by_layer: list[list[list[Step]]] = field(default_factory=list)
    plan: MemoryPlan | None = None
    replay: Step | None = None
    replay_size: int = 0
    reports: list[Report] = field(default_factory=list)
    note: str = ""
    verifier: Verifier | None = None
