"""The search for plans of cuDNN: which of those that it proposes for a convolution are worth
timing; they are built in the background, each once."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import tuned
from ..libraries.cudnn import (
    Configuration,
    CudnnError,
    Handle,
    Plan,
    Proposal,
    configure,
    proposals,
    version,
)
from ..libraries.cudnn_enums import BehaviorNote, HeurMode, NumericalNote
from ..runtime.background import Task, begin
from ..runtime.cache import cache_folder, cached, keep
from ..runtime.out_of_memory import is_out_of_memory
from .cudnn_graph import Convolution

MAX_WORKSPACE = 1 << 30
PLAIN_ENGINE = 0
"""The engine that computes anything, at up to a thousand times the least time."""
INEXACT = ("filter", 17)
"""An operation, and the engine for it that is off by up to 1e-3 in fp32 without saying so, and by
3e-3 in tf32 (Winograd's transforms for 5 x 5 filters, cuDNN 9.19)."""
LESS_THAN_FP32 = frozenset((
    NumericalNote.TENSOR_CORE, NumericalNote.DOWN_CONVERT_INPUTS,
    NumericalNote.REDUCED_PRECISION_REDUCTION, NumericalNote.FFT, NumericalNote.WINOGRAD_TILE_4x4,
    NumericalNote.WINOGRAD_TILE_6x6, NumericalNote.WINOGRAD_TILE_13x13,
))  # fmt: skip
"""What engines note that promise less than fp32."""


class BuiltPlan(NamedTuple):
    """A plan, the text of its configuration, and whether cuDNN had to compile it."""

    name: str
    plan: Plan
    compiled: bool


def refused(proposal: Proposal, convolution: Convolution) -> bool:
    """Whether a proposal gives other bits each time, or fewer than the precision promises."""
    notes = proposal.numerical_notes
    inexact = (convolution.operation, proposal.configuration.engine) == INEXACT
    if inexact or NumericalNote.NONDETERMINISTIC in notes:
        return True
    return convolution.precision == "fp32" and bool(notes & LESS_THAN_FP32)


def worth_timing(
    convolution: Convolution, handle: Handle, known: set[str], most: int = tuned.CUDNN_MAX_TIMED
) -> list[BuiltPlan]:
    """The plans that are worth timing, `most` at most, built; none where cuDNN has none for a
    device.

    known: configurations that were compiled before, for other shapes: it grows.
    """
    for mode in HeurMode.A, HeurMode.B, HeurMode.FALLBACK:
        try:
            graph = convolution.graph(handle)
            proposed = list(proposals(handle, graph, mode, tuned.CUDNN_MAX_ASKED))
        except CudnnError:
            continue
        fine = [each for each in proposed if not refused(each, convolution)]
        if plans := _built(convolution, handle, fine, known, most):
            return plans
    return []


def _built(
    convolution: Convolution,
    handle: Handle,
    proposed: Sequence[Proposal],
    known: set[str],
    most: int,
) -> list[BuiltPlan]:
    plans: list[BuiltPlan] = []
    heavy = convolution.work > tuned.CUDNN_HEAVY_WORK
    fresh = tuned.CUDNN_MAX_COMPILED_HEAVY if heavy else tuned.CUDNN_MAX_COMPILED
    left = {True: tuned.CUDNN_MAX_COMPILED_AGAIN, False: fresh}
    numbered = [(str(each.configuration), each) for each in proposed]
    numbered.sort(key=lambda one: one[0] != tuned.CUDNN_OFTEN_BEST)  # else in cuDNN's order
    for index, (name, each) in enumerate(numbered):
        if len(plans) == most or (plans and index >= tuned.CUDNN_MAX_PROPOSED):
            break
        if each.configuration.engine == PLAIN_ENGINE and plans and heavy:
            continue
        compiled = BehaviorNote.RUNTIME_COMPILATION in each.behavior_notes
        if compiled:
            kind = f"{convolution.operation} {name}"
            again = kind in known
            if not left[again]:
                continue
            left[again] -= 1
            known.add(kind)
        try:
            plan = Plan.build(handle, each.descriptor)
        except CudnnError as error:
            if is_out_of_memory(error):
                raise
            continue
        if plan.workspace <= MAX_WORKSPACE:
            plans.append(BuiltPlan(name, plan, compiled))
    return plans


class CudnnPlans:
    """Plans of cuDNN for a device of CuPy's, of this name, built in the background, each once."""

    def __init__(self, device: Any, name: str) -> None:
        self._device, self._name = device, name
        self._stream = 0
        self._local = threading.local()
        self._known: set[str] = set()
        self._searched: dict[Convolution, Task[list[BuiltPlan]]] = {}
        self._named: dict[tuple[Convolution, str], Task[Plan]] = {}

    @functools.cached_property
    def handle(self) -> Handle:
        """What plans are run with."""
        made = Handle()
        made.use(self._stream)
        return made

    def use(self, stream: Any) -> None:
        """Launch on this stream from now on."""
        self._stream = stream.ptr
        if "handle" in self.__dict__:  # made when a plan is first run
            self.handle.use(stream.ptr)

    def search(self, convolution: Convolution) -> Task[list[BuiltPlan]]:
        """The plans that are worth timing."""
        if convolution not in self._searched:
            make = functools.partial(worth_timing, known=self._known)
            build = functools.partial(self._on_a_thread, make, convolution)
            self._searched[convolution] = begin(build)
        return self._searched[convolution]

    def first(self, convolution: Convolution) -> Task[list[BuiltPlan]]:
        """One of these plans, if there are any: the others need not be built."""
        if convolution in self._searched:
            return self._searched[convolution]
        make = functools.partial(worth_timing, known=self._known, most=1)
        return begin(functools.partial(self._on_a_thread, make, convolution))

    def forget(self) -> None:
        """Let go of the plans that were not chosen."""
        self._searched.clear()

    def keep(self, convolution: Convolution, name: str) -> None:
        """Keep one of `search`'s for `named`; on disk, too, if it was compiled."""
        for built in self.search(convolution).result():
            if built.name == name:
                self._named[convolution, name] = Task(functools.partial(getattr, built, "plan"))
                if built.compiled:
                    begin(functools.partial(_write, self._file(convolution, name), built.plan))

    def named(self, convolution: Convolution, name: str) -> Task[Plan]:
        """The plan of a configuration. Its result is a CudnnError where it cannot be built."""
        key = convolution, name
        if key not in self._named:
            make = functools.partial(_plan_of, name, self._file(convolution, name))
            build = functools.partial(self._on_a_thread, make, convolution)
            self._named[key] = begin(build)
        return self._named[key]

    def _file(self, convolution: Convolution, name: str) -> Path:
        """Where a plan that was compiled is cached."""
        text = f"{self._name} {version()} {convolution} {name}"
        return cache_folder() / f"{hashlib.sha256(text.encode()).hexdigest()}.plan.json"

    def _on_a_thread(
        self, make: Callable[[Convolution, Handle], Any], convolution: Convolution
    ) -> Any:
        """What this makes, with the handle of the thread that it runs on."""
        if not hasattr(self._local, "handle"):
            self._device.use()  # each thread has a current device of its own
            self._local.handle = Handle()
        return make(convolution, self._local.handle)


def _plan_of(name: str, file: Path, convolution: Convolution, handle: Handle) -> Plan:
    with contextlib.suppress(OSError, UnicodeDecodeError, CudnnError):
        if kept := cached(file.name):
            return Plan.parse(handle, kept.read_text())
    configuration = configure(handle, convolution.graph(handle), Configuration.parse(name))
    return Plan.build(handle, configuration)


def _write(file: Path, plan: Plan) -> None:
    with contextlib.suppress(OSError, CudnnError):  # then it is compiled again
        keep(file, str(plan).encode())
