"""The passes that make a net's layers what runs: a visible list, in their order; and what they
build of a net for one set of shapes: its blobs, programs, steps and memory.

Each is a function that changes a `Build`: most of them its programs (forward and backward).
`osucaffe time --passes` prints what each did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from ...backends import primitives as ops
from ...backends.backend import Backend
from ...backends.formula import PRELU
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Run, Tensor
from ...blob import Blob
from ...labels import Labels
from ..assembly import Assembly
from ..capture import by_layer
from ..recording import (
    Writers,
    find_writers,
    record_backward,
    record_forward,
    warn_of_overwriters,
)
from . import fusion, inference, siblings, verify
from .batch_norm import (
    fuse_batch_norm,
    join_pooling,
    join_sum_backward,
    share_gradients,
    sum_outputs,
)
from .constants import Constants
from .editing import Programs, operands, owners
from .folding import fold_batch_norm
from .memory import MemoryPlan, plan_memory
from .overlap import overlap_calls
from .pixels import move_strides, skip_pixels
from .sums import add_gradients


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
    gradients: whether there is a backward pass; accumulate, seeds, scale, seedable: see
    `record_backward`. again: the net has been built before, for other shapes. constants: of a net
    that only runs forward, what holds as long as its parameters do.

    programs: forward and backward. writers: of what forward wrote, when it was recorded.
    next: the numbers of those that are to be prepared and placed:
    of an inspectable net one at a time, when it first runs. steps: by these numbers, the calls with
    their steps; by layer: the steps alone, as `by_layer` sorts them. replay: all of forward as one.
    moves: how often its blobs alone got other memory (see `Backend.moves`). states: of what is
    remembered, what the layers had set up. note: what the pass that runs has to say. verifier: what
    checks the programs after each pass, where that is asked for.
    """

    parts: Assembly
    labels: dict[str, Labels]
    backend: Backend
    inspectable: bool
    total: Tensor
    gradients: bool
    accumulate: bool
    seeds: Mapping[str, Tensor]
    scale: Tensor | None
    seedable: Iterable[Blob]
    again: bool = False
    constants: Constants | None = None
    programs: Programs = field(default_factory=list)
    writers: Writers = field(default_factory=dict)
    next: Sequence[int] = ()
    steps: dict[int, list[tuple[Primitive, Run]]] = field(default_factory=dict)
    by_layer: dict[int, list[list[Run]]] = field(default_factory=dict)
    plan: MemoryPlan | None = None
    replay: Run | None = None
    moves: int = 0
    states: Sequence[dict[str, Any]] = ()
    reports: list[Report] = field(default_factory=list)
    note: str = ""
    verifier: verify.Verifier | None = None

    @cached_property
    def written(self) -> set[Tensor]:
        """The tensors to whose memory forward writes, once it is recorded."""
        return owners(tensor for call in self.programs[0] for tensor in call.written_tensors())


@dataclass(frozen=True)
class Pass:
    """A named pass. inspectable: whether it runs for inspectable nets, too. inference: whether it
    runs only for nets that only run forward. for_all: else for backends that gain by it."""

    name: str
    run: Callable[[Build], None]
    inspectable: bool = True
    inference: bool = False
    for_all: bool = True


def record(build: Build) -> None:
    """Let each layer record its calls."""
    forward = record_forward(build.parts, build.total)
    build.programs = [forward, []]
    build.writers = find_writers(forward)
    build.note = f"calls of {len(build.parts.nodes)} layers"


def derive(build: Build) -> None:
    """Record the gradients of what forward has become."""
    if build.gradients:
        build.programs[1] = record_backward(
            build.parts,
            build.programs[0],
            accumulate=build.accumulate,
            seeds=build.seeds,
            scale=build.scale,
            seedable=build.seedable,
        )
        if build.verifier is not None:
            build.verifier.record(build.programs[1])


def warn(build: Build) -> None:
    """Warn of layers that overwrite what gradients need: once, not again for other shapes."""
    if build.gradients and not build.again:
        build.note = f"{warn_of_overwriters(build.writers, build.programs[1])} layers overwrite"


def share(build: Build) -> None:
    """Drop copies of gradients where batch normalization is; of other nets the memory plan may grow
    by it, as it happens to fit (EDSR in bf16: by 0.9 %)."""
    if any(isinstance(call, ops.BatchNormBackward) for call in build.programs[1]):
        share_gradients(build.programs[1])


def prepare(build: Build) -> None:
    """Let the backend choose layouts, and give each call its step."""
    constants = build.constants.new if build.constants else []
    nodes, programs = build.parts.nodes, {number: build.programs[number] for number in build.next}
    known = {call: step for node in nodes for call, step in node.steps.items()}
    new = [call for call in chain(*programs.values(), constants) if call not in known]
    steps = iter(build.backend.prepare(new, [*{*chain(*build.programs)}.difference(new)]))
    for number, calls in programs.items():
        prepared: list[tuple[Primitive, Run]] = [
            (call, known.get(call) or next(steps)) for call in calls
        ]
        build.steps[number], build.by_layer[number] = prepared, by_layer(prepared, len(nodes))
        for call, step in prepared if build.inspectable else ():
            if call.position >= 0:
                nodes[call.position].steps[call] = step
    if build.constants:
        build.constants.prepared(build.backend, steps)
    scratch = sum(len(call.scratch) for calls in programs.values() for call in calls)
    build.note = f"steps for the {build.backend.name} backend, {scratch} pieces of scratch memory"


def overlap(build: Build) -> None:
    """Let calls that nothing waits for overlap what follows."""
    calls = [*chain(*build.programs)]
    overlap_calls(calls, build.backend.overlaps, build.backend.nbytes)
    overlapping = sum(call.overlap > 0 for call in calls)
    build.note = f"{overlapping} calls overlap what follows"


def plan(build: Build) -> None:
    """Give each tensor that has no memory yet its place. The programs of an inspectable net are
    planned one by one, so what both of them use gets memory of its own."""
    if build.inspectable:
        users = Counter(chain(*(owners(chain(*map(operands, c))) for c in build.programs)))
        for tensor, count in users.items():
            tensor.persistent |= count > 1
    calls = chain(*(build.programs[number] for number in build.next))
    made = plan_memory(calls, build.backend.nbytes)
    if build.plan is None:
        build.plan = made
    else:
        build.plan.join(made)
    build.note = str(build.plan)


def _fusing(name: str, run: Callable[[Build], None]) -> Pass:
    return Pass(name, run, inspectable=False)


def _gaining(name: str, run: Callable[[Programs], None]) -> Pass:
    return Pass(name, lambda build: run(build.programs), inspectable=False, for_all=False)


def _deriving(name: str, run: Callable[[Build], None]) -> Pass:
    """A pass over a forward from which backward is derived, for backends that gain by it."""

    def prepare(build: Build) -> None:
        if build.gradients:
            run(build)

    return Pass(name, prepare, inspectable=False, for_all=False)


def _inferring(name: str, run: Callable[[list[Primitive], Build, Constants], None]) -> Pass:
    """A pass over the forward of nets that only run forward."""

    def infer(build: Build) -> None:
        assert build.constants is not None
        run(build.programs[0], build, build.constants)

    return Pass(name, infer, inspectable=False, inference=True)


def make_prelu(calls: list[Primitive], build: Build, constants: Constants) -> None:
    """Make PReLUs of what nets write in their place, where one can be part of the call before."""
    if PRELU in build.backend.activations:
        inference.make_prelu(calls, constants)


COMPILE = (
    Pass("record", record),
    _inferring("make PReLU", make_prelu),
    _fusing("ReLU before pooling", lambda build: fusion.relu_before_pooling(build.programs)),
    _fusing("fuse ReLU", lambda build: fusion.fuse_relu(build.programs[0])),
    _fusing("fuse batch norm", lambda build: fuse_batch_norm(build.programs[0])),
    _deriving("skip pixels", lambda build: skip_pixels(build.programs[0], build.parts.nodes)),
    _deriving("normalize in pooling", lambda build: join_pooling(build.programs[0])),
    Pass("derive backward", derive),
    Pass("warn of overwriters", warn),
    _fusing("share gradients", share),
    _fusing("add in batch norm", lambda build: join_sum_backward(build.programs[1])),
    _fusing(
        "ReLU before split",
        lambda build: fusion.relu_before_split(build.programs, build.backend.fuses_relu_backward),
    ),
    _fusing(
        "fuse ReLU backward",
        lambda build: fusion.fuse_relu_backward(build.programs, build.backend.fuses_relu_backward),
    ),
    _fusing(
        "join siblings", lambda build: siblings.join_siblings(build.programs, build.parts.nodes)
    ),
    _gaining("copy parts once", siblings.copy_parts_once),
    _fusing("add gradients", lambda b: add_gradients(b.programs[1], b.backend.adds_gradient)),
    _gaining("sum outputs", sum_outputs),
    _inferring("drop copies", lambda calls, *_: inference.drop_copies(calls)),
    _inferring("fold batch norm", lambda calls, _, constants: fold_batch_norm(calls, constants)),
    _inferring("drop workspaces", lambda calls, *_: inference.drop_workspaces(calls)),
    _inferring("move strides", lambda calls, *_: move_strides(calls)),
    _inferring(
        "add in place", lambda calls, build, _: inference.add_in_place(calls, build.backend.adds)
    ),
    _inferring("fuse ReLU of sums", lambda calls, *_: fusion.fuse_relu(calls)),
    _inferring("drop unread results", lambda calls, _, c: inference.drop_unread(calls, c)),
    _inferring(
        "pack weights", lambda calls, _, constants: inference.pack_weights(calls, constants)
    ),
    # The last of its kind: others do not look into a call's activation.
    _inferring(
        "fuse activations",
        lambda calls, build, _: fusion.fuse_activations(calls, build.backend.activations),
    ),
)
"""From layers to calls."""
PREPARE = (Pass("prepare", prepare),)
"""From calls to steps."""
PLACE = (Pass("overlap", overlap, inspectable=False), Pass("plan memory", plan))
"""What follows when the parameters have their memory."""


def run(passes: Iterable[Pass], build: Build) -> None:
    """Run passes one after the other, and report each: by default, what was fused into other calls,
    and what runs once for all from now on."""
    for step in passes:
        if build.inspectable and not step.inspectable:
            continue
        if build.constants is None and step.inference:
            continue
        if not (step.for_all or step.name in build.backend.enabled_passes):
            continue
        before, changes, build.note = list(map(len, build.programs)), _changes(build), ""
        step.run(build)
        if build.verifier is None and verify.is_enabled():
            build.verifier = verify.Verifier(
                build.programs, build.parts, build.accumulate, build.constants, build.backend.nbytes
            )
        if build.verifier is not None:
            build.verifier.check(step.name)
        made = sorted((_changes(build) - changes).items())
        note = build.note or ", ".join(f"{count} {name}" for name, count in made)
        build.reports.append(Report(step.name, before, list(map(len, build.programs)), note))


def _changes(build: Build) -> Counter[str]:
    """How many calls of each primitive were fused into others, and how many run once for all."""
    changes = Counter(each.name for call in chain(*build.programs) for each in call.fused)
    if build.constants:
        changes["calls run once for all"] = len(build.constants.new)
    return changes
