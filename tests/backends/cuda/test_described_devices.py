"""GPUs that are not here: on each, every call of every benchmark net has a candidate that fits, and
kernels of each kind compile to its machine code."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from benchmarks import nets
from benchmarks.bench_gpu import CASES
from osucaffe import net
from osucaffe.backends.cuda import Cuda, registry
from osucaffe.backends.cuda.autotune.tuner import Pending, Tuner
from osucaffe.backends.cuda.backend import PRECISIONS
from osucaffe.backends.cuda.runtime import compile
from osucaffe.backends.cuda.runtime import launch as launches
from osucaffe.backends.cuda.runtime.device import NEEDS, Device
from osucaffe.errors import UserError

from .cubin import compile_cubin, usage
from .devices import DEVICES
from .simulated import FakeCudnn, simulate, with_libraries


@dataclass
class Recorded:
    """What would be compiled and launched on a GPU. kernels: their text, options and name, with
    the threads and the bytes of shared memory of each launch."""

    device: Device
    kernels: dict[tuple[str, tuple[str, ...], str], list[tuple[int, int]]] = field(
        default_factory=dict
    )
    best: dict[str, list[str]] = field(default_factory=dict)

    def kinds(self) -> Iterator[tuple[tuple[str, tuple[str, ...], str], list[tuple[int, int]]]]:
        """One kernel of those that differ in numbers and types of elements alone: that with the
        most shared memory."""
        found: dict[str, Any] = {}
        for key, used in self.kernels.items():
            text = re.sub(r"\d+|b?float", "#", key[0] + key[2])
            if text not in found or max(used[-1:]) > max(found[text][1][-1:]):
                found[text] = key, used
        return iter(found.values())


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
        net.Net(nets.training_net(model, batch), phase="TRAIN", backend=backend)
        return found

    return prepare


def _record_kernels(monkeypatch: pytest.MonkeyPatch, found: Recorded) -> None:
    def compiled(text: str, function: str, specific: str = "") -> Any:
        capability = found.device.compute_capability
        name = f"sm_{specific or capability}"
        made = compile.Kernel(Future(), function, 0)
        made.source = text, (*compile.OPTIONS, f"-arch={name}"), function  # type: ignore[attr-defined]
        return made

    def launch(function: Any, grid: Any, arguments: Any, **given: Any) -> Any:
        step = plain(function, grid, arguments, **given)
        threads = int(np.prod(given.get("block", launches.THREADS)))
        found.kernels.setdefault(function.source, []).append((threads, given.get("shared", 0)))
        return step

    registry.load()  # what is imported from here on would keep what is patched
    plain = launches.launch
    monkeypatch.setattr(compile, "compiled", compiled)
    for name, module in [*sys.modules.items()]:
        if name.startswith("osucaffe.backends.cuda") and getattr(module, "launch", None) is plain:
            monkeypatch.setattr(module, "launch", launch)


def _record_candidates(monkeypatch: pytest.MonkeyPatch, found: Recorded) -> None:
    def fastest(tuner: Tuner, call: Any, providers: Any) -> Any:
        made = []
        for provider in providers:
            for candidate in provider.candidates():
                try:
                    candidate.make(call.copy())
                except RuntimeError:  # no block fits
                    continue
                made.append((provider.name, candidate))
        assert made, f"{call.layer} {call.name} on {found.device.name}"
        found.best.setdefault(call.name, []).extend(name for name, _ in made)
        return made[0][1]

    monkeypatch.setattr(Tuner, "fastest", fastest)
    monkeypatch.setattr(Tuner, "begin", lambda *given: Pending(*given))


@pytest.mark.parametrize("gpu", DEVICES)
def test_every_call_has_a_candidate_and_kernels_fit(
    gpu: str, record: Callable[[str, str, str, int], Recorded]
) -> None:
    device = DEVICES[gpu]
    kernels: dict[Any, Any] = {}
    for precision in PRECISIONS:
        if device.compute_capability < NEEDS[precision]:
            continue
        for model, batch in CASES:
            found = record(gpu, precision, model, batch)
        kernels |= found.kernels
        own = {name for names in found.best.values() for name in names}
        assert ("small_mma" in own) == (precision != "fp32" and device.has_mma)
        assert ("small_wgmma" in own) == (precision != "fp32" and device.has_wgmma)
        assert ("wgrad_tf32" in own) == (precision == "tf32" and device.has_wgmma)
    kinds = [*Recorded(device, kernels).kinds()]
    assert len(kinds) > 40
    for (text, options, name), used in kinds:
        registers, declared = usage(compile_cubin(text, options), name)
        assert 0 < registers <= 255
        for threads, shared in {*used}:
            assert threads <= 1024
            assert -(-registers // 8) * 8 * threads <= device.registers_per_sm, (name, options)
            assert declared + shared <= device.shared_memory, (name, options)


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
    old = Device(0, "Tesla V100", 70, 80, 96 << 10, 96 << 10, 65536, 2048, 32, 1.5e9, 9e11, 1)
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
