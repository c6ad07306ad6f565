"""Owns the passes that make a net's layers what runs: a visible list, in their order.

Each is a function of the programs (forward, and the forms of backward) to programs; what else it
looks at or makes is in the `Build`. `osucaffe time --passes` prints what each did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...backends.backend import Backend
from ...backends.tensor import Call, Step, Tensor
from ...blob import Blob
from ..assembly import Assembly
from ..recording import record_backward, record_forward
from . import activations, fusion, inference, verify
from .calls import Programs, timelines
from .constants import Constants
from .memory import MemoryPlan, plan_memory
from .overlap import overlap_calls
from .overwritten import warn_of_overwriters
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
    """What is built, and what the passes make besides the programs.

    total: where the sum of the losses goes. backwards: for each form of backward, whether it
    accumulates. seeds, scale, seedable: see `record_backward`. again: the net has been built
    before, for other shapes.
    """

    parts: Assembly
    backend: Backend
    inspectable: bool
    total: Tensor
    backwards: Sequence[bool]
    seeds: Mapping[str, Tensor]
    scale: Tensor | None
    seedable: Iterable[Blob]
    again: bool = False
    constants: Constants | None = None
    """Of a net that only runs forward: what holds as long as its parameters do."""
    steps: list[list[tuple[Call, Step]]] = field(default_factory=list)
    """Of each program, the calls with their steps."""
    plan: MemoryPlan | None = None
    reports: list[Report] = field(default_factory=list)
    note: str = ""
    """What the pass that runs has to say."""
    verifier: Verifier | None = None
    """What checks each pass behind it, where that is asked for."""


@dataclass(frozen=True)
class Pass:
    """A named pass. looked_at: whether it runs for nets of which a user may look at every blob.
    inference: whether it runs only for those that only run forward."""

    name: str
    run: Callable[[Programs, Build], Programs]
    looked_at: bool = True
    inference: bool = False


def record(_: Programs, build: Build) -> Programs:
    """Let each layer record its calls."""
    programs = [record_forward(build.parts, build.total)]
    for accumulate in build.backwards:
        calls = record_backward(
            build.parts,
            accumulate=accumulate,
            seeds=build.seeds,
            scale=build.scale,
            seedable=build.seedable,
        )
        programs.append(calls)
    build.note = f"calls of {len(build.parts.nodes)} layers"
    return programs


def warn(programs: Programs, build: Build) -> Programs:
    """Warn of layers that overwrite what gradients need: once, not again for other shapes."""
    if len(programs) > 1 and not build.again:
        build.note = f"{warn_of_overwriters(programs[0], programs[1])} layers overwrite"
    return programs


def _fusing(fuse: fusion.Fusion) -> Callable[[Programs, Build], Programs]:
    def run(programs: Programs, build: Build) -> Programs:
        before = _fused(programs)
        programs = fuse(programs, build.backend.fuses_relu_backward)
        found = (_fused(programs) - before).items()
        build.note = ", ".join(f"{count} {name}" for name, count in sorted(found)) or "nothing"
        return programs

    return run


def _inferring(improve: inference.Pass) -> Callable[[Programs, Build], Programs]:
    def run(programs: Programs, build: Build) -> Programs:
        assert build.constants is not None
        constants = len(build.constants.new)
        programs = [improve(programs[0], build.constants, build.backend.adds), *programs[1:]]
        if made := len(build.constants.new) - constants:
            build.note = f"{made} calls run once for all"
        return programs

    return run


def fuse_activations(programs: Programs, build: Build) -> Programs:
    """Let what makes an activation's input apply it. The last of its kind: others do not look into
    a call's activation."""
    before = len(programs[0])
    programs = [activations.fuse_activations(programs[0], build.backend.activations), *programs[1:]]
    build.note = f"{before - len(programs[0])} activations"
    return programs


def _fused(programs: Programs) -> Counter[str]:
    """How many calls of each primitive others do besides."""
    return Counter(other.name for calls in programs for call in calls for other in call.fused)


def prepare(programs: Programs, build: Build) -> Programs:
    """Let the backend choose layouts, and give each call its step."""
    constants = build.constants.new if build.constants else []
    all_calls = [call for calls in [*programs, constants] for call in calls]
    steps = iter(build.backend.prepare(all_calls))
    build.steps = [[(call, next(steps)) for call in calls] for calls in programs]
    if build.constants:
        build.constants.prepared(build.backend, steps)
    scratch = sum(len(call.scratch) for calls in programs for call in calls)
    build.note = f"steps for the {build.backend.name} backend, {scratch} pieces of scratch memory"
    return programs


def overlap(programs: Programs, build: Build) -> Programs:
    """Let calls that nothing waits for run beside what follows."""
    for calls in timelines(programs):
        overlap_calls(calls, build.backend.overlaps, build.backend.nbytes)
    overlapping = sum(call.overlap > 0 for calls in programs for call in calls)
    build.note = f"{overlapping} calls run beside what follows"
    return programs


def plan(programs: Programs, build: Build) -> Programs:
    """Give each tensor that has no memory yet its place."""
    share = not build.inspectable
    build.plan = plan_memory(timelines(programs), build.backend.nbytes, share=share)
    build.note = str(build.plan)
    return programs


COMPILE = (
    Pass("record", record),
    Pass("warn of overwriters", warn),
    *(Pass(name, _fusing(fuse), looked_at=False) for name, fuse in fusion.FUSIONS),
    *(
        Pass(name, _inferring(improve), looked_at=False, inference=True)
        for name, improve in inference.INFERENCE
    ),
    Pass("fuse activations", fuse_activations, looked_at=False, inference=True),
    Pass("prepare", prepare),
)
"""From layers to steps."""
PLACE = (Pass("overlap", overlap, looked_at=False), Pass("plan memory", plan))
"""What follows when the parameters have their memory."""


def run(passes: Iterable[Pass], programs: Programs, build: Build) -> Programs:
    """Run passes one after the other, and report each."""
    for each in passes:
        if build.inspectable and not each.looked_at:
            continue
        if build.constants is None and each.inference:
            continue
        before, build.note = list(map(len, programs)), ""
        programs = each.run(programs, build)
        if build.verifier is None and verify.is_enabled():
            build.verifier = verify.Verifier(programs, build)
        if build.verifier is not None:
            build.verifier.check(programs, each.name)
        build.reports.append(Report(each.name, before, list(map(len, programs)), build.note))
    return programs
