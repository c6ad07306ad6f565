"""GPUs that are not here: on each, every call of every benchmark net has a candidate that fits, and
kernels of each kind compile to its machine code."""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks import nets
from benchmarks.training.bench_gpu import CASES
from osucaffe import net
from osucaffe.backends.cuda import Cuda, registry
from osucaffe.backends.cuda.autotune.tuner import Tuner
from osucaffe.backends.cuda.call import Pending
from osucaffe.backends.cuda.gpu import PRECISIONS
from osucaffe.backends.cuda.runtime import compile
from osucaffe.backends.cuda.runtime import launch as launches
from osucaffe.backends.cuda.runtime.device import NEEDS, Device
from osucaffe.errors import UserError

from .compiler import compile_kernel
from .cubin import usage
from .devices import DEVICES
from .simulated import FakeCudnn, quick_ptx, simulate, with_libraries

WORDS = re.compile(r"\d+|b?float")
ROWS = re.compile(r"(#[^#\n]{1,14})\1+")
"""Numbers in a row, as the accumulators of an instruction are."""
Key = tuple[str, tuple[str, ...], str]
"""A kernel: its text, the options of the compiler, and its name."""
training_net = functools.cache(nets.training_net)


@dataclass
class Recorded:
    """What would be compiled and launched on a GPU. kernels: with the threads and the bytes of
    shared memory of their launches."""

    device: Device
    kernels: dict[Key, set[tuple[int, int]]] = field(default_factory=dict)
    best: dict[str, list[str]] = field(default_factory=dict)

    def kinds(self) -> set[Key]:
        """Two kernels of those that differ in types of elements, in numbers and in how many stand
        in a row alone: that with the most shared memory, and that with the most accumulators."""
        found: dict[str, list[tuple[int, int, Key]]] = {}
        for key, used in self.kernels.items():
            text, numbers = WORDS.subn("#", key[0] + key[2])
            shared = max(shared for _, shared in used)
            found.setdefault(ROWS.sub(r"\1", text), []).append((shared, numbers, key))
        most_shared = {max(each)[2] for each in found.values()}
        return most_shared | {max(each, key=lambda it: (it[1], it))[2] for each in found.values()}


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str, int], Recorded]:
    """Prepare the calls of a training net for a GPU, without memory for them."""
    results: dict[tuple[str, str], Recorded] = {}

    def prepare(gpu: str, precision: str, model: str, batch: int) -> Recorded:
        simulate(monkeypatch, DEVICES[gpu])
        found = results.setdefault((gpu, precision), Recorded(DEVICES[gpu]))
        _record_kernels(monkeypatch, found)
        _record_candidates(monkeypatch, found)
        monkeypatch.setattr(net.Net, "_place", lambda self: None)
        for name in "Arena", "first_values":
            monkeypatch.setattr(net, name, lambda *_, **__: [])
        backend = with_libraries(Cuda(precision=precision), FakeCudnn(plans=1))
        net.Net(training_net(model, batch), phase="TRAIN", backend=backend)
        return found

    return prepare


def _record_kernels(monkeypatch: pytest.MonkeyPatch, found: Recorded) -> None:
    def compiled(text: str, function: str, specific: str = "") -> Any:
        capability = found.device.compute_capability
        name = f"sm_{specific or capability}"
        made = compile.Kernel(Future(), text, function, 0)
        made.source = text, (*compile.OPTIONS, f"-arch={name}"), function  # type: ignore[attr-defined]
        return made

    def launch(function: Any, grid: Any, arguments: Any, **given: Any) -> Any:
        step = plain(function, grid, arguments, **given)
        block = given.get("block", launches.THREADS)
        threads = block if isinstance(block, int) else math.prod(block)
        found.kernels.setdefault(function.source, set()).add((threads, given.get("shared", 0)))
        return step

    registry.load()  # what is imported from here on would keep what is patched
    plain = launches.launch
    monkeypatch.setattr(compile, "compiled", compiled)
    for name, module in [*sys.modules.items()]:
        if name.startswith("osucaffe.backends.cuda") and getattr(module, "launch", None) is plain:
            monkeypatch.setattr(module, "launch", launch)


def _record_candidates(monkeypatch: pytest.MonkeyPatch, found: Recorded) -> None:
    def fastest(tuner: Tuner, ctx: Any, providers: Any) -> Any:
        made = []
        for provider in providers:
            for candidate in provider.candidates():
                try:
                    candidate.make(ctx.copy())
                except RuntimeError:  # no block fits
                    continue
                made.append((provider.name, candidate))
        assert made, f"{ctx.call} on {found.device.name}"
        found.best.setdefault(ctx.call.name, []).extend(name for name, _ in made)
        return made[0][1]

    monkeypatch.setattr(Tuner, "fastest", fastest)
    monkeypatch.setattr(Tuner, "begin", lambda tuner, *given: Pending(tuner.fastest, *given))


@pytest.mark.parametrize(
    "gpu",
    [pytest.param(gpu, marks=() if gpu == "A100" else pytest.mark.long) for gpu in DEVICES],
)
def test_every_call_has_a_candidate_and_kernels_fit(
    gpu: str, record: Callable[[str, str, str, int], Recorded]
) -> None:
    device = DEVICES[gpu]
    kernels: dict[Any, Any] = {}
    for precision in PRECISIONS:
        if device.compute_capability < NEEDS[precision]:
            continue
        if precision == "fp16" and gpu not in ("T4", "H200"):
            continue  # to the choice of kernels it is bf16, which T4 has not
        for model, batch in CASES:
            found = record(gpu, precision, model, batch)
        kernels |= found.kernels
        own = {name for names in found.best.values() for name in names}
        assert ("small_mma" in own) == (precision != "fp32" and device.has_mma)
        assert ("wgrad_tf32" in own) == (precision == "tf32" and device.has_wgmma)
        assert ("wgrad_16bit" in own) == (precision in ("bf16", "fp16") and device.has_wgmma)
    assert all(
        threads <= 1024 and shared <= device.shared_memory
        for used in kernels.values()
        for threads, shared in used
    )
    kinds = Recorded(device, kernels).kinds()
    assert len(kinds) > 40
    for text, options, name in kinds:
        if gpu != "H200" and not _can_exceed(text, kernels[text, options, name]):
            quick_ptx(text, options)
            continue
        registers, declared = usage(compile_kernel("CUBIN", text, options), name)
        assert 0 < registers <= 255
        for threads, shared in kernels[text, options, name]:
            assert -(-registers // 8) * 8 * threads <= device.registers_per_sm, (name, options)
            assert declared + shared <= device.shared_memory, (name, options)


def _can_exceed(text: str, used: set[tuple[int, int]]) -> bool:
    """Whether a kernel's machine code can be wrong on one GPU alone: 256 threads have all registers
    that an instruction can name, and memory of a fixed size is at most what every GPU has."""
    own = text.replace(compile.read("common.cuh"), "")
    takes = any(threads > 256 or shared for threads, shared in used)
    return takes or "asm" in own or "__CUDA_ARCH__" in own


@pytest.mark.parametrize(
    ("gpu", "precision", "said"),
    [
        ("T4", "bf16", "no bf16, which begins with Ampere.*use --precision fp16 or fp32"),
        ("T4", "tf32", "no tf32, which begins with Ampere.*use --precision fp32 or fp16"),
    ],
)
def test_what_a_gpu_has_not_is_refused(
    gpu: str, precision: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(monkeypatch, DEVICES[gpu])
    with pytest.raises(UserError, match=said):
        Cuda(precision=precision)


def test_older_gpus_are_refused() -> None:
    old = Device(0, "Tesla V100", 70, 80, 96 << 10, 96 << 10, 65536, 2048, 32, 1.5e9, 1)
    for precision in NEEDS:
        with pytest.raises(UserError, match=r"V100.*7\.0.*too old: .* Turing \(7\.5\) and later"):
            old.refuse(precision)


@pytest.mark.parametrize(
    ("capability", "supported", "wanted"),
    [
        (90, (75, 80, 90, 120), "sm_90"),
        (103, (75, 90, 100, 120), "compute_100"),  # this NVRTC does not know it yet
        (130, (75, 90, 120), "compute_120"),
    ],
)
def test_architectures(capability: int, supported: tuple[int, ...], wanted: str) -> None:
    assert compile.architecture(capability, supported) == wanted


def test_an_nvrtc_that_is_too_new_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"8\.0 and later, not for 7\.5.*cuda12"):
        compile.architecture(75, (80, 90))


def test_what_blocks_leave_to_the_system() -> None:
    """A kibibyte of each block from Ampere on, as the CUDA programming guide says."""
    found = {name: device.reserved_shared_memory for name, device in DEVICES.items()}
    assert found == dict.fromkeys(DEVICES, 1 << 10) | {"T4": 0}
