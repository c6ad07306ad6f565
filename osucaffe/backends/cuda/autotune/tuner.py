"""The tuner: it builds the candidates for a net's calls side by side, times them on the device
in turn, drops those that fail or disagree, and remembers the fastest."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....errors import UserError
from ...primitives.recording import Primitive
from ...tensor import Run, Tensor
from ..call import Candidate, Context, Pending, Provider, TuningGpu
from ..layout import dtype_of, strides
from ..runtime.cache import cache_folder
from ..runtime.out_of_memory import is_out_of_memory
from . import timing
from .choices import Choices
from .trial import Trial

log = logging.getLogger("osucaffe")

MAX_SLOWDOWN = 1.1
"""What is that many times as slow as the best in one run is not run again."""
JITTER_MS = 0.01
"""Milliseconds by which the host's part of one run differs from that of another."""
MAX_RETRIES = 3
"""Runs of one that seems so slow, where the best is brief: what compiles the next kernels may have
held up the host."""
MAX_SLOWER_IN_A_ROW = 12
"""Libraries list the most promising first: after that many in a row that are slower than the best,
the rest of a provider's is left out where each takes long (timing.BRIEF)."""
TOLERANCES = {"fp32": 2e-4, "tf32": 1e-2, "fp16": 1e-2, "bf16": 4e-2}
"""How far from the others a candidate's outputs may be, of the largest, in each precision: several
times the rounding of inputs and outputs, a hundredth of what a wrong index does."""


@dataclass(frozen=True)
class Timed:
    """A candidate of a provider, its milliseconds, and some of what it computed."""

    provider: Provider
    candidate: Candidate
    milliseconds: float
    outputs: list[np.ndarray]

    @property
    def name(self) -> str:
        return f"{self.provider.name}: {self.candidate.name}"


class Tuner:
    """Chooses for the calls of a backend. name: of the device and of all that candidates are made
    of; what was chosen with others is not valid."""

    def __init__(self, backend: TuningGpu, name: str) -> None:
        self._backend = backend
        self._choices = Choices(name)
        self._begun: set[str] = set()
        self._announced = False

    def begin(self, ctx: Context, providers: Sequence[Provider]) -> Pending:
        """Begin to build what is to be timed for a call, or what was chosen for one like it."""
        key = signature(ctx)
        if key not in self._begun:
            self._begun.add(key)
            remembered = self._remembered(key, providers)
            if remembered:
                provider, name = remembered
                provider.build_named(ctx, name)
            else:
                for provider in providers:
                    if provider.eager and provider.worthwhile(math.inf):
                        provider.build(ctx)
        return Pending(self.fastest, ctx, providers)

    def fastest(self, ctx: Context, providers: Sequence[Provider]) -> Candidate:
        """The candidate that was chosen for a call like this one, or is now; the call notes it."""
        key = signature(ctx)
        if remembered := self._remembered(key, providers):
            provider, name = remembered
            if found := provider.named(name):
                ctx.call.implementation = f"{provider.name}: {name}"
                return found
        self._announce()
        fine = {each.name: each for each in self._agreeing(ctx, self._time(ctx, providers))}
        best = min(fine.values(), key=lambda each: each.milliseconds)
        best = fine[self._choices.put(key, best.name, best.milliseconds, fine)]
        best.provider.chosen(best.candidate.name)
        ctx.call.implementation = best.name
        log.debug("%r: %s, %.4f ms", ctx.call, best.name, best.milliseconds)
        return best.candidate

    def _remembered(self, key: str, providers: Sequence[Provider]) -> tuple[Provider, str] | None:
        """The provider and the name of the candidate that was chosen."""
        chosen = self._choices.get(key)
        name, _, candidate = chosen[0].partition(": ") if chosen else ("", "", "")
        return next(((each, candidate) for each in providers if each.name == name), None)

    def _announce(self) -> None:
        """Say, once, why the user waits."""
        if not self._announced:
            self._announced = True
            log.info(
                "Looking for the fastest kernels on GPU %d, once for each net (remembered in %s)",
                self._backend.device.id,
                cache_folder(),
            )

    def _time(self, ctx: Context, providers: Sequence[Provider]) -> list[Timed]:
        """All candidates that work and are worth timing."""
        timed: list[Timed] = []
        failures: list[Exception] = []
        best, least = math.inf, [math.inf]
        with Trial(ctx) as trial:
            for provider in providers:
                if not provider.worthwhile(best):
                    continue
                behind = 0
                for candidate in self._candidates(ctx.call, provider, failures):
                    if candidate.estimate >= best or behind == MAX_SLOWER_IN_A_ROW:
                        continue
                    try:
                        run = trial.step(candidate)
                        if provider.of_library and trial.hides_nan(run):
                            raise RuntimeError("its ReLU makes a number of NaN")
                        taken, outputs = self._try(trial, run, least, best)
                    except (RuntimeError, UserError) as error:
                        failures.append(error)
                        log.debug(
                            "%r: %s: %s is left out: %s",
                            ctx.call, provider.name, candidate.name, error,
                        )  # fmt: skip
                        continue
                    timed.append(Timed(provider, candidate, taken, outputs))
                    behind = behind + 1 if taken > max(best, timing.BRIEF) else 0
                    best = min(best, taken)
            if timed and not any(each.provider.of_library for each in timed):
                timed += self._witness(ctx.call, trial, providers, failures)
        if not timed:
            raise _none_works(ctx, failures)
        return timed

    def _witness(
        self,
        call: Primitive,
        trial: Trial,
        providers: Sequence[Provider],
        failures: list[Exception],
    ) -> list[Timed]:
        """A candidate of a library that need not be asked, as those of our kernels are one code:
        they might all be wrong in the same way."""
        libraries = [each for each in providers if each.of_library]
        # What is fused may have to be compiled.
        for provider in sorted(libraries, key=lambda each: "fused" in each.name):
            try:
                if (candidate := provider.first()) is not None:
                    taken, outputs = self._try(trial, trial.step(candidate), [0.0], 0.0)
                    return [Timed(provider, candidate, taken, outputs)]
            except (RuntimeError, UserError) as error:
                failures.append(error)
                log.debug("%r: %s: %s", call, provider.name, error)
        return []

    def _candidates(
        self, call: Primitive, provider: Provider, failures: list[Exception]
    ) -> list[Candidate]:
        """Those of a provider; none where it fails to build them."""
        try:
            return list(provider.candidates())
        except RuntimeError as error:
            failures.append(error)
            log.debug("%r: %s: %s", call, provider.name, error)
            return []

    def _try(
        self, trial: Trial, run: Run, least: list[float], best: float
    ) -> tuple[float, list[np.ndarray]]:
        """The milliseconds of a candidate, roughly if it is not among the best, and its outputs.

        run: what runs it. least: of one run of those before, which it lowers; best: of many runs.
        """
        trial.poison_outputs()
        run()  # what it loads or compiles is not to be timed
        trial.sample()
        limit, first = MAX_SLOWDOWN * least[0] + JITTER_MS, timing.once(self._backend, run)
        more = MAX_RETRIES - 1 if least[0] < timing.BRIEF else 0
        while first > limit and more:
            first, more = min(first, timing.once(self._backend, run)), more - 1
        outputs = trial.samples()
        if first > limit:
            return first, outputs
        least[0] = min(least[0], first)
        return timing.time_of(self._backend, run, first, best), outputs

    def _agreeing(self, ctx: Context, timed: list[Timed]) -> list[Timed]:
        """Those that compute what most do; of two codes, what the library's does."""
        timed = sorted(timed, key=lambda each: not each.provider.of_library)
        codes = [each.name if each.provider.of_library else each.provider.name for each in timed]
        tolerance = TOLERANCES[self._backend.precision]
        odd = disagreeing([each.outputs for each in timed], codes, tolerance)
        for number in odd:
            log.debug(
                "%r: %s is left out: it does not agree with the others",
                ctx.call,
                timed[number].name,
            )
        return [each for number, each in enumerate(timed) if number not in odd]


def disagreeing(
    outputs: Sequence[Sequence[np.ndarray]], codes: Sequence[str], tolerance: float
) -> set[int]:
    """The numbers of the candidates whose outputs differ from the middle of all codes (of two: from
    the first) by more than this part of the largest, or are not numbers. None where all would be.

    codes: of each candidate; candidates that are one code have one voice, the middle of theirs.
    """
    odd = {
        number
        for number, each in enumerate(outputs)
        if not all(np.isfinite(values).all() for values in each)
    }
    fine = [number for number in range(len(outputs)) if number not in odd]
    for each in zip(*(outputs[number] for number in fine), strict=True):
        values = np.stack(each)
        voices = [
            _middle(values[[codes[number] == code for number in fine]])
            for code in dict.fromkeys(codes[number] for number in fine)
        ]
        middle = _middle(np.stack(voices))
        furthest = np.abs(values - middle).max(axis=1)
        odd |= {fine[i] for i in np.flatnonzero(furthest > tolerance * np.abs(middle).max())}
    return odd if len(odd) < len(outputs) else set()


def _middle(values: np.ndarray) -> np.ndarray:
    """The median of some arrays; of two the first."""
    median: np.ndarray = np.median(values, axis=0) if len(values) > 2 else values[0]
    return median


def _none_works(ctx: Context, failures: Sequence[Exception]) -> Exception:
    """What to raise where no candidate works."""
    for error in failures:
        if is_out_of_memory(error):
            return error
    call, shapes = ctx.call, [list(tensor.shape) for tensor in ctx.call.read_tensors()]
    said = f" ({str(failures[-1]).strip().splitlines()[0]})" if failures else ""
    return UserError(
        f'layer "{call.layer}": nothing on this GPU computes its {call.name} of {shapes} in '
        f"{ctx.backend.precision}{said}: try --precision fp32"
    )


def signature(ctx: Context) -> str:
    """A text of all that the time of a call depends on."""

    def describe(value: Any) -> str:
        if isinstance(value, Tensor):
            shape = "x".join(map(str, value.shape))
            part = " part" if value.base is not None else ""
            return f"{shape} {dtype_of(value)} {strides(value)}{part}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(describe, value))}]"
        return repr(value)

    call = ctx.call
    parts = [call.name, ctx.backend.precision]
    parts += [f"{name} {describe(getattr(call, name))}" for name in call.roles]
    return "; ".join([*parts, *sorted(call.accumulates)])
