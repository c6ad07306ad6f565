"""Owns the oneDNN side of the CPU backend: finds the library and prepares calls that it serves."""

from __future__ import annotations

import ctypes.util
import os
import sys
from collections.abc import Iterable
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from ...backend import Backend
from ...tensor import Call, Step, Tensor, sequence
from . import convolution, elementwise, inner_product, normalization, pooling, recurrent, update
from .api import Library, Unsupported
from .memory import Layout
from .preparation import Preparation

__all__ = ["Layout", "OneDNN", "load"]

_WHEELS = ("onednn-cpu-gomp", "onednn-cpu-iomp")
_MODULES = (convolution, inner_product, pooling, normalization, elementwise, recurrent, update)

# How long OpenMP's threads spin for one another before they sleep: long enough to bridge the gaps
# between the calls of an iteration. GNU OpenMP's default of 300,000 rounds (some 5 ms) wastes the
# cores of whatever else runs: beside three other busy processes an iteration took 8 times as long.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

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


class OneDNN:
    """oneDNN as a part of the CPU backend: `prepare` declines what it does not serve."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.only_forward = False
        """Whether the calls that are prepared belong to programs without a backward pass."""
        self._threads = 0

    @property
    def version(self) -> str:
        return ".".join(map(str, self.library.version))

    @property
    def instruction_set(self) -> str:
        """The newest instructions that it makes use of on this machine."""
        number = self.library.effective_cpu_isa()
        return _INSTRUCTION_SETS.get(number, f"instruction set {number:#x}")

    def prepare(self, backend: Backend, call: Call) -> Step | None:
        """The step that runs a call, or None when NumPy shall do it.

        What takes less time than threads to meet runs on one.
        """
        if self._threads == 1 or not is_small(call):
            return self._prepare(call)
        set_threads, threads = self.library.set_threads, self._threads
        set_threads(1)  # primitives are made for so many threads as there are then
        try:
            step = self._prepare(call)
        finally:
            set_threads(threads)
        return None if step is None else on_one_thread(step, set_threads, threads)

    def _prepare(self, call: Call) -> Step | None:
        function = next(
            (vars(module)[call.name] for module in _MODULES if call.name in vars(module)), None
        )
        arguments = call.reads | call.writes
        if function is None or not _all_float32(call):
            return None
        scratch = len(call.scratch)
        try:
            step: Step | None = function(
                Preparation(self.library, call, only_forward=self.only_forward),
                **arguments,
                **call.settings,
            )
        except Unsupported:
            step = None
        if step is None:
            del call.scratch[scratch:]
        return step

    def joined(self, steps: Iterable[Step]) -> list[Step]:
        """The steps; those on one thread that follow each other as one, which saves a microsecond
        for each."""
        result: list[Step] = []
        for alone, group in groupby(steps, lambda step: hasattr(step, "threadless")):
            if alone:
                inner = sequence([vars(step)["threadless"] for step in group])
                result.append(on_one_thread(inner, self.library.set_threads, self._threads))
            else:
                result += group
        return result

    def reorder(self, backend: Backend, source: Tensor, target: Tensor) -> Step:
        """The step that copies source into target, of the same shape, whatever their layouts."""
        call = Call("copy", {"x": source}, {"y": target}, {})
        step = elementwise.copy(Preparation(self.library, call), source, target)
        for scratch in call.scratch:
            flat = backend.allocate(scratch.size * np.dtype(scratch.dtype).itemsize)
            scratch.place(flat.view(scratch.dtype), flat.ctypes.data)
        return step

    def set_threads(self, count: int) -> None:
        """How many threads a primitive uses when the calling thread runs it."""
        self._threads = count
        self.library.set_threads(count)


SMALL_WORK, SMALL_SIZE = 1 << 19, 1 << 16
"""Multiplications, and elements, that one thread is through with in 20 microseconds: that is what
it costs two to meet on a machine that does other things, too."""


def is_small(call: Call) -> bool:
    """Whether a call is done before a second thread could help."""
    if sum(each.count for each in (*call.read_tensors(), *call.written_tensors())) > SMALL_SIZE:
        return False
    if call.name in _PRODUCTS:
        w, y = call.reads["w"], (call.reads | call.writes)[_PRODUCTS[call.name]]
        outputs = w.shape[1] if call.settings.get("transpose") else w.shape[0]
        return bool(y.count * (w.count // outputs) <= SMALL_WORK)
    return any(call.name in vars(module) for module in (pooling, normalization, elementwise))


_PRODUCTS = {
    "convolution": "y",
    "convolution_backward_data": "dy",
    "inner_product": "y",
    "inner_product_backward_data": "dy",
}
"""By primitive, what has an element for each product of a row of weights."""


def on_one_thread(step: Step, set_threads: Any, threads: int) -> Step:
    """The step, with one thread while it runs; alone, it is in the attribute `threadless`."""

    def run() -> None:
        set_threads(1)
        step()
        set_threads(threads)

    run.threadless = step  # type: ignore[attr-defined]
    run.implementation = getattr(step, "implementation", "")  # type: ignore[attr-defined]
    return run


def _all_float32(call: Call) -> bool:
    notes = {id(call.writes.get("index")), id(call.reads.get("index"))}
    tensors = [*call.read_tensors(), *call.written_tensors()]
    return all(t.dtype == "float32" for t in tensors if id(t) not in notes) and all(
        t.count for t in tensors
    )


def load() -> OneDNN | None:
    """Load oneDNN 3.x: `$OSUCAFFE_ONEDNN` (empty: use none), a wheel's, or the system's library."""
    for path in _candidates():
        try:
            return OneDNN(Library(path))
        except (OSError, AttributeError):  # not loadable, or without a function that is needed
            continue
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
