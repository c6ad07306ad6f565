"""Owns the passes that make a net's layers what runs: a visible list, in their order.

Each is a function that changes a `Build`: most of them its programs (forward, and the forms of
backward). `osucaffe time --passes` prints what each did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..capture import by_layer
from ..recording import record_backward, record_forward, warn_of_overwriters
from . import fusion, inference, verify
from .batch_norm import fuse_batch_norm
from .build import Build, Report
from .constants import Constants
from .editing import timelines
from .folding import fold_batch_norm
from .memory import plan_memory
from .overlap import overlap_calls


@dataclass(frozen=True)
class Pass:
    """A named pass. looked_at: whether it runs for nets of which a user may look at every blob.
    inference: whether it runs only for those that only run forward."""

    name: str
    run: Callable[[Build], None]
    looked_at: bool = True
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

    return Pass(name, run, looked_at=False)


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

    return Pass(name, run, looked_at=False, inference=True)


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
    """Let calls that nothing waits for run beside what follows."""
    for calls in timelines(build.programs):
        overlap_calls(calls, build.backend.overlaps, build.backend.nbytes)
    overlapping = sum(call.overlap > 0 for calls in build.programs for call in calls)
    build.note = f"{overlapping} calls run beside what follows"


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
    Pass("fuse activations", fuse_activations, looked_at=False, inference=True),
)
"""From layers to calls."""
PREPARE = (Pass("prepare", prepare),)
"""From calls to steps."""
PLACE = (Pass("overlap", overlap, looked_at=False), Pass("plan memory", plan))
"""What follows when the parameters have their memory."""


def run(passes: Iterable[Pass], build: Build) -> None:
    """Run passes one after the other, and report each."""
    for each in passes:
        if build.inspectable and not each.looked_at:
            continue
        if build.constants is None and each.inference:
            continue
        before, build.note = list(map(len, build.programs)), ""
        each.run(build)
        if build.verifier is None and verify.is_enabled():
            build.verifier = verify.Verifier(
                build.programs, build.parts, build.backwards, build.constants, build.backend.nbytes
            )
        if build.verifier is not None:
            build.verifier.check(each.name)
        after = list(map(len, build.programs))
        build.reports.append(Report(each.name, before, after, build.note))
