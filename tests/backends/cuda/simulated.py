"""A stand-in for a GPU: kernels are compiled by NVRTC and their launches checked, not run."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda.autotune.trial import Trial
from osucaffe.backends.cuda.autotune.tuner import Tuner
from osucaffe.backends.cuda.call import Candidate, Pending, Provider
from osucaffe.backends.cuda.convolution.cudnn_search import BuiltPlan
from osucaffe.backends.cuda.runtime import device
from osucaffe.backends.cuda.runtime.device import Device

from .compiler import compile_kernel, nvrtc
from .devices import H200

SIZES = {"b8": 1, "u8": 1, "b16": 2, "b32": 4, "u32": 4, "s32": 4, "f32": 4, "b64": 8, "u64": 8,
         "f64": 8, "s64": 8}  # fmt: skip


PROPERTIES = {
    "name": b"NVIDIA H200", "major": 9, "minor": 0, "multiProcessorCount": 132,
    "sharedMemPerBlockOptin": 227 << 10, "sharedMemPerMultiprocessor": 228 << 10,
    "regsPerMultiprocessor": 65536, "maxThreadsPerMultiProcessor": 2048,
    "maxBlocksPerMultiProcessor": 32, "totalGlobalMem": 141 << 30,
}  # fmt: skip
"""What CUDA says of a GPU: those of its fields that are read."""


@functools.cache
def compile_ptx(text: str, options: tuple[str, ...]) -> str:
    """PTX of a CUDA source. AssertionError as `compile_kernel` says."""
    # For a GPU itself only what has instructions of its own: ptxas takes as long again.
    general = tuple(re.sub(r"=sm_(\d+)$", r"=compute_\1", option) for option in options)
    return compile_kernel("PTX", text, general).decode()


def quick_ptx(text: str, options: tuple[str, ...]) -> str:
    """PTX of a CUDA source, hardly optimised where that is possible: in a fifth of the time."""
    is_specific = any(option.endswith("a") for option in options)
    quick = () if is_specific else ("--Ofast-compile=mid", "--minimal")
    return compile_ptx(text, (*options, *quick))


def wait_first(ptx: str) -> bool:
    """Whether all kernels wait for what they follow before they touch any memory."""
    for body in ptx.split(".entry")[1:]:
        begin, waits, _ = body.partition("griddepcontrol.wait;")
        if not waits or re.search(r"\b(ld|st|atom|red|cp)\.(?!param)", begin):
            return False
    return True


def _is_by_value(argument: Any) -> bool:
    """A number or a description; other arrays stand for memory of the GPU, and pass its address."""
    is_array = isinstance(argument, np.ndarray)
    return argument.dtype.kind == "V" if is_array else isinstance(argument, np.generic)


class Kernel:
    """A compiled kernel; calling it checks the launch against what the kernel declares."""

    def __init__(self, ptx: str, name: str) -> None:
        found = re.search(rf"\.entry {name}\s*\((.*?)\)", ptx, re.DOTALL)
        assert found, f"no kernel {name}"
        self.name = name
        parameters = re.findall(r"\.param (?:\.align \d+ )?\.(\w+) \w+(?:\[(\d+)\])?", found[1])
        self.sizes = [SIZES[kind] * int(count or 1) for kind, count in parameters]
        self.max_dynamic_shared_size_bytes = 48 * 1024

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], values: Sequence[Any], shared_mem: int = 0
    ) -> None:
        sizes = [value.nbytes if _is_by_value(value) else 8 for value in values]
        assert sizes == self.sizes, f"{self.name}: {values}"
        assert 0 < np.prod(block) <= 1024
        assert all(0 < extent < 2**16 for extent in grid[1:]), f"{self.name}: grid {grid}"
        assert 0 < grid[0] < 2**31, f"{self.name}: grid {grid}"
        limit = device.current().shared_memory
        assert shared_mem <= self.max_dynamic_shared_size_bytes <= max(limit, 48 * 1024)


class Memory(np.ndarray):
    """Host memory that looks like CuPy's."""

    @property
    def data(self) -> SimpleNamespace:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self) -> np.ndarray:
        return np.array(self)


class _Stream:
    ptr = 0
    ptds: _Stream

    def __init__(self, **_: Any) -> None: ...
    def use(self) -> None: ...
    def synchronize(self) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def record(self, stream: Any = None) -> None: ...


_Stream.ptds = _Stream()


def _move(to: int, source: int, size: int, *_: Any) -> None:
    ctypes.memmove(to, source, size)


def _move_rows(
    to: int, pitch: int, source: int, source_pitch: int, width: int, rows: int, *_: Any
) -> None:
    assert width <= min(pitch, source_pitch)
    for row in range(rows):
        ctypes.memmove(to + row * pitch, source + row * source_pitch, width)


def _at(address: int, nbytes: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address)).view(Memory)


class _FakeDevice:
    mem_info = 1 << 30, 2 << 30

    def __init__(self, number: int) -> None:
        self.id = number

    def use(self) -> None: ...


class _Module(SimpleNamespace):
    __hash__ = object.__hash__


@functools.cache
def fake_cupy() -> Any:
    """As much of CuPy as the backend uses, on host memory."""
    runtime = SimpleNamespace(
        getDeviceCount=lambda: 1, memcpyAsync=_move, memcpy2DAsync=_move_rows,
        memsetAsync=lambda to, byte, size, *_: ctypes.memset(to, byte, size),
        memcpyHostToDevice=1, memcpyDeviceToDevice=3, hostRegister=lambda *_: None,
        hostUnregister=lambda *_: None,
        CUDARuntimeError=RuntimeError, deviceGetAttribute=lambda *_: 1980000,
        getDeviceProperties=lambda number: PROPERTIES,
    )  # fmt: skip
    cuda = SimpleNamespace(
        runtime=runtime, Device=_FakeDevice,
        UnownedMemory=lambda address, *_: address, MemoryPointer=lambda address, _: address,
        Stream=_Stream, Event=_Stream, memory=SimpleNamespace(OutOfMemoryError=MemoryError),
    )  # fmt: skip
    pool = SimpleNamespace(free_bytes=lambda: 0)
    return _Module(
        cuda=cuda,
        empty=lambda size, dtype: np.zeros(size, dtype).view(Memory),
        ndarray=lambda shape, dtype, memptr: _at(memptr, *shape),
        get_default_memory_pool=lambda: pool,
    )


def simulate(monkeypatch: pytest.MonkeyPatch, gpu: Device = H200) -> None:
    """Let backends made from here on compile kernels for this GPU, and run none."""
    from osucaffe.backends.cuda import gpu as gpus
    from osucaffe.backends.cuda.autotune import timing
    from osucaffe.backends.cuda.runtime import compile, driver

    if nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    monkeypatch.setattr(gpus, "import_cupy", fake_cupy)

    def module(ptx: str, number: int) -> Any:
        assert gpu.compute_capability < 90 or wait_first(ptx)
        return SimpleNamespace(get_function=functools.partial(Kernel, ptx))

    monkeypatch.setattr(compile, "_compiled_file", quick_ptx)
    monkeypatch.setattr(compile, "_module", module)
    monkeypatch.setattr(compile, "_supported", supported)
    monkeypatch.setattr(gpus, "describe", lambda runtime, number: gpu)
    monkeypatch.setattr(device, "current", lambda: gpu)
    monkeypatch.setattr(driver, "encoded", lambda *_: np.zeros(1, f"V{driver.BYTES}"))
    monkeypatch.setattr(timing, "once", lambda *_: 1.0)
    monkeypatch.setattr(timing, "time_of", lambda *_: 1.0)
    monkeypatch.setattr(Trial, "hides_nan", lambda *_: False)  # nothing is computed
    monkeypatch.setattr(compile, "_compiled", functools.cache(compile._compiled.__wrapped__))


def compile_for_communicators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let communicators' kernels be compiled, and their launches checked, for the H200."""
    from osucaffe.comm.gpu import kernels

    def compiled(text: str, function: str) -> Any:
        ptx = compile_ptx(text, ("-std=c++17", "-arch=compute_90"))
        return SimpleNamespace(function=Kernel(ptx, function))

    if nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    monkeypatch.setattr(kernels, "compiled", compiled)
    monkeypatch.setattr(device, "current", lambda: H200)
    kernels.kernel.cache_clear()


@functools.cache
def supported() -> tuple[int, ...]:
    """The compute capabilities that this NVRTC knows."""
    count = ctypes.c_int()
    nvrtc().nvrtcGetNumSupportedArchs(ctypes.byref(count))
    array = (ctypes.c_int * count.value)()
    nvrtc().nvrtcGetSupportedArchs(array)
    return tuple(array)


class FakeCudnn:
    """Stands for cuDNN: some plans for everything, which compute nothing.

    has: whether there are plans for a convolution. asked: all that was looked for.
    """

    def __init__(self, has: Callable[[Any], bool] = lambda _: True, plans: int = 2) -> None:
        self._has, self._plans = has, plans
        self.asked: list[Any] = []
        self.handle = None

    def search(self, convolution: Any) -> Future[Any]:
        self.asked.append(convolution)
        count = self._plans if self._has(convolution) else 0
        return done([BuiltPlan(f"eng{i}", self._plan(convolution), False) for i in range(count)])

    def first(self, convolution: Any) -> Future[Any]:
        plans = [BuiltPlan("eng0", self._plan(convolution), False)]
        return done(plans if self._plans and self._has(convolution) else [])

    def named(self, convolution: Any, name: str) -> Future[Any]:
        return done(self._plan(convolution))

    def _plan(self, convolution: Any) -> Any:
        def bind(addresses: dict[int, int], workspace: int) -> None:
            assert len(addresses) == len(convolution.operands)
            assert not any(address % 16 for address in addresses.values())

        return SimpleNamespace(workspace=64, bind=bind, execute=lambda handle, bound: None)

    def use(self, stream: Any) -> None: ...
    def forget(self) -> None: ...
    def keep(self, convolution: Any, name: str) -> None: ...


class FakeProducts:
    """Stands for cuBLASLt, likewise."""

    def __init__(self, algorithms: int = 1) -> None:
        self._algorithms = algorithms
        self.version = 0

    def proposed(self, product: Any) -> Future[list[str]]:
        return done([f"algorithm {i}" for i in range(self._algorithms)])

    def algorithm(self, product: Any, name: str) -> Any:
        def execute(a: int, b: int, c: int, bias: int, workspace: int, stream: int) -> None:
            assert bool(bias) == product.has_bias
            assert not any(address % 16 for address in (a, b, c))

        return SimpleNamespace(workspace=0, execute=execute)


def force(monkeypatch: pytest.MonkeyPatch, provider: str | tuple[str, ...], number: int) -> None:
    """Let a candidate be chosen, untimed, wherever there is one: that of this number (from 0,
    around in a circle) of the providers whose names begin so."""
    chosen = Tuner.fastest

    def fastest(self: Tuner, ctx: Any, providers: Sequence[Provider]) -> Candidate:
        named = [each for each in providers if each.name.startswith(provider)]
        found = [candidate for each in named for candidate in each.candidates()]
        return found[number % len(found)] if found else chosen(self, ctx, providers)

    monkeypatch.setattr(Tuner, "fastest", fastest)
    monkeypatch.setattr(Tuner, "begin", lambda tuner, *given: Pending(tuner.fastest, *given))


def done(value: Any) -> Future[Any]:
    """A future that has this result."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def with_libraries(backend: Any, cudnn: Any = None, products: Any = None) -> Any:
    """The backend, with stand-ins for the libraries, and nothing remembered."""
    backend.cudnn = cudnn or FakeCudnn()
    backend.products = products or FakeProducts()
    backend.tuner = Tuner(backend, "none")
    backend.tuner._choices._chosen.clear()
    return backend
