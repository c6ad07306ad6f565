"""Owns the passes that make a net's layers what runs: a visible list, in their order; and what they
build of a net for one set of shapes: its blobs, programs, steps and memory.

Each is a function that changes a `Build`: most of them its programs (forward, and the forms of
backward). `osucaffe time --passes` prints what each did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...backends.backend import Backend
from ...backends.tensor import Call, Step, Tensor
from ...blob import Blob
from ...labels import Labels
from ..assembly import Assembly
from ..capture import by_layer
from ..recording import record_backward, record_forward, warn_of_overwriters
from . import fusion, inference, verify
from .batch_norm import fuse_batch_norm
from .constants import Constants
from .editing import Programs, timelines
from .folding import fold_batch_norm
from .memory import MemoryPlan, plan_memory
from .overlap import overlap_calls


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
    verifier: verify.Verifier | None = None


@dataclass(frozen=True)
class Pass:
    """A named pass. inspectable: whether it runs for inspectable nets, too. inference: whether it
    runs only for nets that only run forward."""

    name: str
    run: Callable[[Build], None]
    inspectable: bool = True
    inference: bool = False


def record(build: Build) -> None:
    """Let each layer record its calls."""
    build.programs = [record_forward(build.parts, build.total)]
    for accumulate in build.backwards:
        calls = record_backward(
            build.parts,
            accumulate=accumulate,
            seeds=build.seeds,
            scale=build.scale,
            seedable=build.seedable,
        )
        build.programs.append(calls)
    build.note = f"calls of {len(build.parts.nodes)} layers"


def warn(build: Build) -> None:
    """Warn of layers that overwrite what gradients need: once, not again for other shapes."""
    if len(build.programs) > 1 and not build.again:
        build.note = f"{warn_of_overwriters(*build.programs[:2])} layers overwrite"


def _fusing(name: str, fuse: Callable[[Build], None]) -> Pass:
    """A pass that says which calls others do besides, now."""

    def run(build: Build) -> None:
        before = _fused(build)
        fuse(build)
        fused = (_fused(build) - before).items()
        build.note = ", ".join(f"{count} {name}" for name, count in sorted(fused)) or "nothing"

    return Pass(name, run, inspectable=False)


def _fused(build: Build) -> Counter[str]:
    """How many calls of each primitive others do besides."""
    calls = (call for program in build.programs for call in program)
    return Counter(other.name for call in calls for other in call.fused)


def _inferring(name: str, improve: Callable[[Build, Constants], None]) -> Pass:
    """A pass of nets that only run forward, which says what it made constant."""

    def run(build: Build) -> None:
        assert build.constants is not None
        before = len(build.constants.new)
        improve(build, build.constants)
        if made := len(build.constants.new) - before:
            build.note = f"{made} calls run once for all"

    return Pass(name, run, inspectable=False, inference=True)


def fuse_activations(build: Build) -> None:
    """Let what makes an activation's input apply it. The last of its kind: others do not look into
    a call's activation."""
    before = len(build.programs[0])
    fusion.fuse_activations(build.programs[0], build.backend.activations)
    build.note = f"{before - len(build.programs[0])} activations"


def prepare(build: Build) -> None:
    """Let the backend choose layouts, and give each call its step."""
    constants = build.constants.new if build.constants else []
    all_calls = [call for calls in [*build.programs, constants] for call in calls]
    steps = iter(build.backend.prepare(all_calls))
    build.steps = [[(call, next(steps)) for call in calls] for calls in build.programs]
    build.by_layer = [by_layer(calls, len(build.parts.nodes)) for calls in build.steps]
    if build.constants:
        build.constants.prepared(build.backend, steps)
    scratch = sum(len(call.scratch) for calls in build.programs for call in calls)
    build.note = f"steps for the {build.backend.name} backend, {scratch} pieces of scratch memory"


def overlap(build: Build) -> None:
    """Let calls that nothing waits for overlap what follows."""
    for calls in timelines(build.programs):
        overlap_calls(calls, build.backend.overlaps, build.backend.nbytes)
    overlapping = sum(call.overlap > 0 for calls in build.programs for call in calls)
    build.note = f"{overlapping} calls overlap what follows"


def plan(build: Build) -> None:
    """Give each tensor that has no memory yet its place."""
    times, share = timelines(build.programs), not build.inspectable
    build.plan = plan_memory(times, build.backend.nbytes, share=share)
    build.note = str(build.plan)


COMPILE = (
    Pass("record", record),
    Pass("warn of overwriters", warn),
    _fusing("ReLU before pooling", lambda build: fusion.relu_before_pooling(build.programs)),
    _fusing("fuse ReLU", lambda build: fusion.fuse_relu(build.programs[0])),
    _fusing("fuse batch norm", lambda build: fuse_batch_norm(build.programs)),
    _fusing(
        "fuse ReLU backward",
        lambda build: fusion.fuse_relu_backward(build.programs, build.backend.fuses_relu_backward),
    ),
    _inferring("drop copies", lambda build, constants: inference.drop_copies(build.programs[0])),
    _inferring(
        "fold batch norm", lambda build, constants: fold_batch_norm(build.programs[0], constants)
    ),
    _inferring(
        "add in place",
        lambda build, constants: inference.add_in_place(build.programs[0], build.backend.adds),
    ),
    _inferring("fuse ReLU of sums", lambda build, constants: fusion.fuse_relu(build.programs[0])),
    _inferring("drop notes", lambda build, constants: inference.drop_notes(build.programs[0])),
    _inferring(
        "drop unread results",
        lambda build, constants: inference.drop_unread(build.programs[0], constants),
    ),
    _inferring(
        "pack weights",
        lambda build, constants: inference.pack_weights(build.programs[0], constants),
    ),
    Pass("fuse activations", fuse_activations, inspectable=False, inference=True),
    Pass("prepare", prepare),
)
"""From layers to steps."""
PLACE = (Pass("overlap", overlap, inspectable=False), Pass("plan memory", plan))
"""What follows when the parameters have their memory."""


def run(passes: Iterable[Pass], build: Build) -> None:
    """Run passes one after the other, and report each."""
    for step in passes:
        if build.inspectable and not step.inspectable:
            continue
        if build.constants is None and step.inference:
            continue
        before, build.note = list(map(len, build.programs)), ""
        step.run(build)
        if build.verifier is None and verify.is_enabled():
            build.verifier = verify.Verifier(
                build.programs, build.parts, build.backwards, build.constants, build.backend.nbytes
            )
        if build.verifier is not None:
            build.verifier.check(step.name)
        after = list(map(len, build.programs))
        build.reports.append(Report(step.name, before, after, build.note))
