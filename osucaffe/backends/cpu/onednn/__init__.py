"""The oneDNN side of the CPU backend: finds the library and prepares calls that it serves."""

from __future__ import annotations

import ctypes.util
import functools
import logging
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ....messages import lacks_memory
from ... import primitives as ops
from ...backend import Backend
from ...formula import ELU, PRELU, RELU6
from ...primitives.recording import Primitive
from ...tensor import Run, Step, Tensor
from ..host import Host
from . import elementwise, normalization, pooling, products, recurrent, threads, update
from .api import Failed, Library, Unsupported
from .memory import Layout
from .preparation import Preparation

__all__ = ["Layout", "OneDNN", "load"]

_log = logging.getLogger("osucaffe")
_WHEELS = ("onednn-cpu-gomp", "onednn-cpu-iomp")
_MODULES = (products, pooling, normalization, elementwise, recurrent, update)

# How long OpenMP's threads spin for one another before they sleep: long enough (some 0.1 ms) to
# bridge the gaps between the calls of an iteration: with 1,000 rounds training on two cores takes
# 1.05 to 1.1 times as long. A thread that wakes may be queued on the core where another spins for
# it: beside others, training takes 0.75 to 0.9 times as long with 2,000 rounds as with 5,000. GNU
# OpenMP's default is 300,000.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

# dnnl_cpu_isa_t; each includes those before it.
_INSTRUCTION_SETS = {
    0x1: "SSE4.1",
    0x3: "AVX",
    0x7: "AVX2",
    0xF: "AVX2 with VNNI",
    0x1F: "AVX2 with VNNI, bf16 and fp16",
    0x27: "AVX-512",
    0x67: "AVX-512 with VNNI",
    0xE7: "AVX-512 with VNNI and bf16",
    0x1EF: "AVX-512 with VNNI, bf16 and fp16",
    0xFEF: "AVX-512 with AMX",
    0x1FEF: "AVX-512 with AMX and fp16",
}


@dataclass(frozen=True)
class Analysis:
    """What preparing a net's calls goes by: whether it only runs forward, and then what a pass
    takes that may run on one thread or on all (infinite: it may not)."""

    only_forward: bool
    work: float = math.inf


class OneDNN:
    """oneDNN as a part of the CPU backend: `prepare` declines what it does not serve."""

    activations = frozenset((ELU, PRELU, RELU6))
    """Formulas that convolution and inner product can end with."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._threads = 0

    @property
    def version(self) -> str:
        return ".".join(map(str, self.library.version))

    @property
    def instruction_set(self) -> str:
        """The newest instructions that it makes use of on this machine."""
        number = self.library.effective_cpu_isa()
        return _INSTRUCTION_SETS.get(number, f"instruction set {number:#x}")

    @staticmethod
    def analyze(calls: Sequence[Primitive]) -> Analysis:
        """Look at the calls of a net, which will be prepared."""
        only_forward = not any(map(_is_backward, calls))
        layers = [call for call in calls if call.position >= 0]  # not what makes constants
        served = [call for call in layers if _function(call) is not None]
        recurs = any(call.name in vars(recurrent) for call in served)
        if only_forward and served and not recurs:  # else it is an update
            return Analysis(only_forward, sum(map(threads.work, served)))
        return Analysis(only_forward)

    def prepare(self, call: Primitive, net: Analysis) -> Step | None:
        """The step that runs a call of a net, or None when NumPy shall do it.

        What takes less time than threads to meet runs on one; all of a small program runs on all:
        as a whole it is not to change between them. What a forward pass may run on one thread
        instead (see `coalesce`) says what it computes.
        """
        if self._threads == 1:
            return self._prepare(call, net.only_forward)
        apart = net.work <= threads.SHORT_PROGRAM and not threads.same_sums(call)
        small, tiny = (net.work <= most for most in (threads.SMALL_PROGRAM, threads.TINY_PROGRAM))
        if tiny or apart or (not small and _is_small(call)):
            step = self._prepare_alone(call, net.only_forward)
            return step and threads.on_one_thread(step, self.library.set_threads, self._threads)
        alone = self._prepare_alone(call, net.only_forward) if small else None
        code = alone and _code(alone, call)
        step = self._prepare(call, net.only_forward)
        if step and alone and _code(step, call) != code:  # it would not be alone in the other way
            return threads.on_one_thread(alone, self.library.set_threads, self._threads)
        if step is not None and net.work < math.inf and threads.same_sums(call):
            step.call = call
        return step

    def _prepare_alone(self, call: Primitive, only_forward: bool) -> Step | None:
        """The step for one thread: primitives are made for that many as there are then."""
        self.library.set_threads(1)
        try:
            return self._prepare(call, only_forward)
        finally:
            self.library.set_threads(self._threads)

    def _prepare(self, call: Primitive, only_forward: bool) -> Step | None:
        function = _function(call)
        if function is None or not _all_float32(call):
            return None
        scratch = len(call.scratch)
        try:
            p = Preparation(self.library, call, only_forward=only_forward)
            step: Step | None = function(p, call)
        except Unsupported as error:
            step = None
            if isinstance(error, Failed):
                _tell(call.name, str(error))
        if step is None:
            del call.scratch[scratch:]
        return step

    def coalesce(self, backend: Host, steps: Sequence[Run]) -> list[Run]:
        """The steps, fewer, and for a forward pass on fewer threads where the cores are taken: see
        `threads.coalesce`."""

        def alone(step: Step, call: Primitive) -> Step | None:
            again = call.changed(scratch=[])
            made = self._prepare_alone(again, only_forward=True)
            _place(backend, again.scratch)
            same = made and _code(made, again) == _code(step, call)
            return made if same else None

        def set_threads(count: int) -> None:
            self.library.set_threads(count)
            backend.workers.alone = count == 1

        return threads.coalesce(steps, set_threads, self._threads, alone)

    def reorder(self, backend: Backend, source: Tensor, target: Tensor) -> Step:
        """The step that copies source into target, of the same shape, whatever their layouts.
        ValueError for what a primitive has noted: it has as many bytes as oneDNN wants."""
        for tensor in source, target:
            if isinstance(tensor.layout, pooling.Workspace):
                raise ValueError(
                    f"{tensor.name or 'a tensor'} holds what oneDNN noted for backward: it "
                    "has no values of the tensor's shape"
                )
        call = ops.Copy(source, target)
        step = elementwise.copy(Preparation(self.library, call), call)
        _place(backend, call.scratch)
        return step

    def set_threads(self, count: int) -> None:
        """How many threads a primitive uses when the calling thread runs it."""
        self._threads = count
        self.library.set_threads(count)


@functools.cache
def _tell(name: str, error: str) -> None:
    """Say why NumPy does what oneDNN should do, which takes several times as long."""
    _log.warning(
        "oneDNN fails at %s (%s): NumPy computes it, slowly. Please report it", name, error
    )


def _code(step: Step, call: Primitive) -> tuple[str, int]:
    """The library's code, and of how many executions a step consists. Where these are not the same
    for another number of threads, sums may be in another order, as weights are reordered."""
    return call.implementation, len(step.implementation.split())


def _place(backend: Backend, scratch: Sequence[Tensor]) -> None:
    for tensor in scratch:
        backend.place(tensor, backend.allocate(backend.nbytes(tensor)), 0)


def _function(call: Primitive) -> Any:
    """What prepares calls of this primitive, if oneDNN may serve it."""
    return next((vars(module)[call.name] for module in _MODULES if call.name in vars(module)), None)


def _is_backward(call: Primitive) -> bool:
    """Whether a call belongs to a backward pass: deconvolution runs `convolution_backward_data`
    forward, but what it writes is not a gradient, which would lie as its data does."""
    forward = isinstance(call, ops.ConvolutionBackwardData) and call.dx.like is None
    return "_backward" in call.name and not forward


def _is_small(call: Primitive) -> bool:
    """Whether a call is done before a second thread could help."""
    known = isinstance(call, threads.Products) or any(
        call.name in vars(module) for module in (pooling, normalization, elementwise)
    )
    return known and threads.work(call) <= threads.SMALL_WORK


def _all_float32(call: Primitive) -> bool:
    note = getattr(call, "index", None)
    tensors = [*call.read_tensors(), *call.written_tensors()]
    return all(t.count and (t.dtype == "float32" or t is note) for t in tensors)


def load() -> OneDNN | None:
    """Load oneDNN 3.x: `$OSUCAFFE_ONEDNN` (empty: use none), a wheel's, or the system's library.

    None where there is none that can be loaded; of those that cannot a warning tells. Raises
    MemoryError where memory is too short: a run that goes on with more has other last bits.
    """
    refused = []
    for path in _candidates():
        try:
            return OneDNN(Library(path))
        except OSError as error:
            if lacks_memory(error):
                raise MemoryError("oneDNN needs more") from error
            refused.append(str(error))
        except AttributeError as error:  # a function that is needed is not there
            refused.append(f"{path}: {error}")
    for why in refused:
        _log.warning("oneDNN is not used, and NumPy is slower: %s", why)
    return None


def _candidates() -> list[str]:
    if "OSUCAFFE_ONEDNN" in os.environ:
        return [path] if (path := os.environ["OSUCAFFE_ONEDNN"]) else []
    found: list[str] = []
    for wheel in _WHEELS:
        try:
            files = metadata.files(wheel) or []
        except metadata.PackageNotFoundError:
            continue
        found += [str(file.locate()) for file in files if file.name == "libdnnl.so.3"]
    found += map(str, Path(sys.prefix, "lib").glob("libdnnl.so.3"))
    system = ctypes.util.find_library("dnnl")
    return found + ([system] if system else [])
