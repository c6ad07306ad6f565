"""Owns cuDNN: its handle, and the choice of a plan for each convolution.

A plan is chosen by timing those that cuDNN proposes; see `plans.py` for where choices are kept.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from .cudnn_graph import UIDS, Convolution, graph_of
from .out_of_memory import is_out_of_memory
from .plans import Choices, device_name, fastest, trial_memory

if TYPE_CHECKING:
    from .backend import Cuda

MOST_PROPOSED, MOST_TIMED = 40, 24
"""So many of cuDNN's proposals are looked at, or as many as it takes to find one that can be built
(in fp32 dozens are refused, since they use tensor cores), and so many are timed: of 40 for each of
CaffeNet's, GoogLeNet's and VGG-16's convolutions in bfloat16 none beyond the 20th was faster."""
MOST_COMPILED, MOST_COMPILED_HEAVY = 2, 3
"""Among them, those that cuDNN has to compile first (about 0.4 s each); where HEAVY is exceeded."""
HEAVY = 2e10
"""Multiplications."""
OFTEN_BEST = "eng4_k24=2"
"""What is compiled first: cuDNN 9.19 proposes it late, but on H200s it was the fastest plan, or
within 6 % of it, for 14 of 21 heavy convolutions of CaffeNet, GoogLeNet and VGG-16 in bfloat16."""
MOST_WORKSPACE = 1 << 30
PLAIN = "eng0"
"""The engine that computes anything, at up to a thousand times the least time."""

INEXACT = ("filter", "eng17")
"""An operation, and the engine for it that is off by up to 1e-3 in fp32 without saying so
(Winograd's transforms for 5 x 5 filters, cuDNN 9.19): not for fp32 runs."""


class Plan:
    """A way to run a convolution: `workspace` bytes of scratch, and `execute`."""

    def __init__(self, graph: Any, index: int, handle: int) -> None:
        self._graph = graph
        self._index = index
        self._handle = handle
        self.name: str = graph.get_plan_name_at_index(index)
        self.workspace: int = graph.get_workspace_size_plan_at_index(index)

    def execute(self, addresses: dict[str, int], workspace: int) -> None:
        """Launch it on the handle's stream. addresses: of the operands; workspace: of scratch."""
        pack = {UIDS[name]: address for name, address in addresses.items()}
        self._graph._execute_plan_at_index(pack, workspace, self._index, self._handle)


Choice = tuple[Callable[[], Plan], float]
"""What gives a plan (compiled only then, if it was chosen in an earlier run: it may not be the
fastest way), and its milliseconds."""


class Cudnn:
    """cuDNN on one device and stream."""

    def __init__(self, backend: Cuda) -> None:
        self.backend = backend
        self.library = import_cudnn()
        self.handle = self.library.create_handle()
        self.use(backend.stream)
        name = device_name(backend)
        self._choices = Choices(f"cudnn {self.library.backend_version()}, {name}")
        self._plans: dict[Convolution, Choice | None] = {}

    def use(self, stream: Any) -> None:
        """Launch on this stream from now on."""
        self.library.set_stream(handle=self.handle, stream=stream.ptr)

    def plan(self, convolution: Convolution) -> Choice | None:
        """What builds the fastest plan, and its milliseconds, or None where cuDNN has none."""
        if convolution not in self._plans:
            remembered = self._choices.get(repr(convolution))
            if remembered is not None:
                name, taken = remembered
                build = functools.cache(lambda: self._remembered(convolution, name))
                self._plans[convolution] = build, taken
            else:
                timed = self._timed(convolution)
                self._plans[convolution] = timed and ((lambda: timed[0]), timed[1])
        return self._plans[convolution]

    def _remembered(self, convolution: Convolution, name: str) -> Plan:
        plan = self.named(convolution, name)
        if plan is None:  # it is not proposed any more
            timed = self._timed(convolution)
            assert timed is not None
            plan = timed[0]
        return plan

    def _timed(self, convolution: Convolution) -> tuple[Plan, float] | None:
        plans = self.plans(convolution)
        if not plans:
            return None
        backend = self.backend
        memory = {
            name: trial_memory(backend, operand.nbytes)
            for name, operand in convolution.operands.items()
        }
        addresses = {name: int(each.data.ptr) for name, each in memory.items()}
        scratch = backend.allocate(max(plan.workspace for plan in plans))
        workspace = int(scratch.data.ptr)
        runs = [functools.partial(plan.execute, addresses, workspace) for plan in plans]
        number, taken = fastest(backend, runs)
        if number is None:
            return None
        self._choices.put(repr(convolution), plans[number].name, taken)
        return plans[number], taken

    def named(self, convolution: Convolution, name: str) -> Plan | None:
        """The plan of this name, if cuDNN still proposes it."""
        graph = self._proposed(convolution)
        names = _names(graph) if graph else []
        return self._built(graph, names.index(name)) if name in names else None

    def plans(self, convolution: Convolution) -> list[Plan]:
        """The plans that are worth timing, built."""
        graph = self._proposed(convolution)
        if graph is None:
            return []
        note = self.library.behavior_note.RUNTIME_COMPILATION
        plans: list[Plan] = []
        compiled = 0
        most = MOST_COMPILED_HEAVY if convolution.work > HEAVY else MOST_COMPILED
        proposals = enumerate(_names(graph))
        for index, name in sorted(proposals, key=lambda each: each[1] != OFTEN_BEST):
            if len(plans) == MOST_TIMED or (plans and index >= MOST_PROPOSED):
                break
            engine = name.split("_")[0]
            if convolution.precision == "fp32" and (convolution.operation, engine) == INEXACT:
                continue
            if engine == PLAIN and plans and convolution.work > HEAVY:
                continue
            if note in graph.get_behavior_notes_for_plan_at_index(index):
                compiled += 1
                if compiled > most:
                    continue
            plan = self._built(graph, index)
            if plan is not None and plan.workspace <= MOST_WORKSPACE:
                plans.append(plan)
        return plans

    def _built(self, graph: Any, index: int) -> Plan | None:
        try:
            graph.build_plan_at_index(index)
        except (RuntimeError, self.library.cudnnGraphNotSupportedError) as error:
            if is_out_of_memory(error):
                raise
            return None
        return Plan(graph, index, self.handle)

    def _proposed(self, convolution: Convolution) -> Any:
        """A graph with the plans that cuDNN proposes for it, or None if it has none."""
        mode = self.library.heur_mode
        for modes in [mode.A], [mode.B], [mode.FALLBACK]:
            graph = graph_of(self.library, self.handle, convolution)
            try:
                graph.validate()
                graph.build_operation_graph()
                graph.create_execution_plans(modes)
                graph.deselect_numeric_notes(self._refused(convolution.precision))
                graph.check_support()
            except (RuntimeError, self.library.cudnnGraphNotSupportedError):
                continue
            return graph
        return None

    def _refused(self, precision: str) -> list[Any]:
        """Notes of the engines that give other bits each time, or fewer than fp32 promises."""
        note = self.library.numerical_note
        refused = [note.NONDETERMINISTIC]
        if precision == "fp32":
            refused += [
                note.TENSOR_CORE, note.DOWN_CONVERT_INPUTS, note.REDUCED_PRECISION_REDUCTION,
                note.FFT, note.WINOGRAD_TILE_4x4, note.WINOGRAD_TILE_6x6, note.WINOGRAD_TILE_13x13,
            ]  # fmt: skip
        return refused


def _names(graph: Any) -> list[str]:
    """Of the plans that cuDNN proposes, in its order."""
    return [graph.get_plan_name_at_index(i) for i in range(graph.get_execution_plan_count())]


@functools.cache
def import_cudnn() -> Any:
    """cuDNN's Python interface, with its library. UserError says what is missing otherwise."""
    hides = "torch" not in sys.modules
    if hides:  # it would import PyTorch, if that is there: seconds, for what nobody uses here
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        import cudnn
    except (ImportError, OSError):
        raise UserError(
            'a GPU needs cuDNN\'s Python interface: pip install "osucaffe[cuda13]" (or [cuda12]), '
            "or nvidia-cudnn-frontend alone where cuDNN is there"
        ) from None
    finally:
        if hides:
            del sys.modules["torch"]
    try:
        cudnn.backend_version()
    except (RuntimeError, OSError) as error:  # the interface looks for the library only then
        raise UserError(
            f"cuDNN's library cannot be loaded ({error}): pip install nvidia-cudnn-cu13 (or "
            "nvidia-cudnn-cu12), or put the folder of libcudnn.so.9 into LD_LIBRARY_PATH"
        ) from None
    return cudnn
