"""What calls are prepared with on a GPU; the candidates that compute one; and the providers that
know these."""

from __future__ import annotations

import copy
import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..primitives.recording import Primitive
from ..tensor import Run, Shape, Tensor, sequence
from .gpu import Gpu
from .layout import Layout, dtype_of, is_nhwc, is_row_major, with_layout
from .passes.convert import convert


class LowPrecision(Protocol):
    """What has 16-bit copies of parameters."""

    def low_precision(self, parameter: Tensor) -> Tensor: ...


class TuningGpu(Gpu):
    """A GPU that chooses among candidates: by autotune/tuner.py."""

    @property
    @abstractmethod
    def trial_source(self) -> Tensor:
        """Where memory to try candidates on is copied from."""

    @abstractmethod
    def tune(self, ctx: Context, providers: Sequence[Provider]) -> Pending:
        """Begin to choose among what these offer."""


class Context:
    """What a call is prepared with: the backend, scratch memory, and conversions around its step.

    trial: where the call is on stand-ins, what has the 16-bit copies of theirs.
    """

    def __init__(
        self, backend: TuningGpu, call: Primitive, trial: LowPrecision | None = None
    ) -> None:
        self.backend = backend
        self.call: Any = call
        self.before: list[Run] = []
        self.after: list[Run] = []
        self.trial = trial
        self._substitutes: dict[tuple[Tensor, bool, str], Tensor] = {}

    def copy(self) -> Context:
        """The same, with scratch memory and conversions of its own."""
        return self.of(self.call.changed(scratch=[]))

    def of(self, call: Primitive) -> Context:
        """A context for another call."""
        return Context(self.backend, call, self.trial)

    def replaced(self, **fields: Any) -> Context:
        """The same for a call with other values in some fields: scratch memory and conversions are
        one with these."""
        ctx = copy.copy(self)
        ctx.call = self.call.changed(**fields)
        return ctx

    def temporary(self, shape: Shape, dtype: str = "float32") -> Tensor:
        """Scratch memory that lives only while the call runs."""
        made: Tensor = self.call.temporary(shape, dtype)
        return made

    def choose_layouts(self, *tensors: Tensor | None) -> None:
        """Choose the layouts of tensors that are still open."""
        for tensor in tensors:
            if tensor is not None:
                self.backend.choose_layout(tensor)

    def tune(self, providers: Sequence[Provider]) -> Pending:
        """Let the tuner choose among what these offer."""
        return self.backend.tune(self, providers)

    def low_precision(self, parameter: Tensor) -> Tensor:
        """A parameter in the precision's type: see `Cuda.low_precision`."""
        if self.backend.dtype == "float32":
            return parameter
        return (self.trial or self.backend).low_precision(parameter)

    def row_major(self, tensor: Tensor) -> Tensor:
        """This tensor, or a temporary in its place, row-major in its own element type: for kernels
        that know no other layout."""
        self.backend.choose_layout(tensor)
        return self.in_layout(tensor, nhwc=False, dtype=tensor.dtype)

    def in_layout(self, tensor: Tensor, *, nhwc: bool, dtype: str | None = None) -> Tensor:
        """This tensor if it lies in this order and element type (None: any), or a temporary that
        does, converted from it before the step if the call reads it, to it after if it writes."""
        dtype = dtype or dtype_of(tensor)
        if (is_nhwc if nhwc else is_row_major)(tensor) and dtype == dtype_of(tensor):
            return tensor
        key = (tensor, nhwc, dtype)
        if key not in self._substitutes:
            call, layout = self.call, Layout(tensor.shape, dtype, nhwc and len(tensor.shape) > 2)
            substitute = with_layout(call.temporary(tensor.shape, tensor.dtype), layout)
            if tensor in call.read_tensors():
                self.before.append(convert(tensor, substitute))
            if tensor in call.written_tensors():
                added = any(getattr(call, name) is tensor for name in call.accumulates)
                self.after.append(convert(substitute, tensor, accumulate=added))
            self._substitutes[key] = substitute
        return self._substitutes[key]


@dataclass(frozen=True)
class Candidate:
    """A way to compute a call.

    name: tells it from the provider's others; it is remembered, and logged.
    make: makes the step for the call, or for one like it on stand-ins for its tensors.
    estimate: milliseconds that it will hardly stay below.
    """

    name: str
    make: Callable[[Context], Run]
    estimate: float = 0.0


class Provider:
    """What computes a call by one library or kernel; its variants are the candidates.

    The tuner asks providers in their order. name: what it is called in logs and in what is
    remembered, without a colon. eager: whether the tuner lets it build what its candidates need as
    soon as the call is known, or only when it is asked. needed_above_ms: it is not asked
    where another candidate takes less. sums: whether it writes the `sums` of a call, too.
    of_library: whether its candidates are a library's: each is code of its own, where those of a
    kernel of ours are one code.
    """

    name: str
    of_library: bool = False
    eager: bool = True
    needed_above_ms: float = 0.0
    sums: bool = False

    def worthwhile(self, best: float) -> bool:
        """Whether to ask for its candidates, where the best so far takes that many milliseconds
        (infinite: there is none yet)."""
        return best >= self.needed_above_ms

    def candidates(self) -> Iterable[Candidate]:
        """Those that this device can run, the most promising first."""
        raise NotImplementedError

    def build(self, ctx: Context) -> None:
        """Begin to build what the candidates need, in the background: kernels begin to be compiled
        when a step is made that launches them."""
        for candidate in self.candidates():
            candidate.make(ctx.copy())

    def build_named(self, ctx: Context, name: str) -> None:
        """Begin to build what the candidate of this name needs."""
        if found := self.named(name):
            found.make(ctx.copy())

    def chosen(self, name: str) -> None:
        """What to do when the candidate of this name was chosen, and others may go."""

    def named(self, name: str) -> Candidate | None:
        """The candidate of this name, if there still is one."""
        return next((each for each in self.candidates() if each.name == name), None)

    def first(self) -> Candidate | None:
        """One that is soon there, for others to be compared with."""
        return next(iter(self.candidates()), None)


class Kernels(Provider):
    """A kernel of ours in some configurations, which their texts tell apart.

    make: makes the step of one for a call. estimate: see `Candidate`.
    """

    def __init__(
        self,
        name: str,
        configs: Callable[[], Sequence[Any]],
        make: Callable[[Any, Context], Run],
        estimate: Callable[[Any], float] = lambda config: 0.0,
    ) -> None:
        self.name, self.make, self._estimate = name, make, estimate
        self._configs = functools.cache(configs)

    def candidates(self) -> Iterable[Candidate]:
        for config in self._configs():
            make = functools.partial(self.make, config)
            yield Candidate(str(config), make, self._estimate(config))


class WithEpilogue(Provider):
    """Another's candidates, each with a step of the call after it."""

    def __init__(self, provider: Provider, step: Callable[[Context], Run]) -> None:
        self.name, self.eager, self.needed_above_ms = (
            provider.name,
            provider.eager,
            provider.needed_above_ms,
        )
        self.of_library = provider.of_library
        self._provider, self._step = provider, step

    def build(self, ctx: Context) -> None:
        self._provider.build(ctx)

    def build_named(self, ctx: Context, name: str) -> None:
        self._provider.build_named(ctx, name)

    def chosen(self, name: str) -> None:
        self._provider.chosen(name)

    def candidates(self) -> Iterable[Candidate]:
        return map(self._with_epilogue, self._provider.candidates())

    def named(self, name: str) -> Candidate | None:
        found = self._provider.named(name)
        return found and self._with_epilogue(found)

    def first(self) -> Candidate | None:
        found = self._provider.first()
        return found and self._with_epilogue(found)

    def _with_epilogue(self, candidate: Candidate) -> Candidate:
        def make(ctx: Context) -> Run:
            return sequence([candidate.make(ctx), self._step(ctx)])

        return replace(candidate, make=make)


def skip_if_faster_than(milliseconds: float, providers: list[Provider]) -> list[Provider]:
    """Providers that are asked, and build, only where candidates before them take longer: but for
    one candidate of a library, with which kernels of ours are compared (see `Tuner`)."""
    for each in providers:
        each.eager, each.needed_above_ms = False, max(each.needed_above_ms, milliseconds)
    return providers


def fallbacks(providers: list[Provider]) -> list[Provider]:
    """Providers that are to be asked only where none before them has a candidate that works."""
    return skip_if_faster_than(math.inf, providers)


@dataclass(frozen=True)
class Pending:
    """A call whose candidates are being built. choose: chooses among them."""

    choose: Callable[[Context, Sequence[Provider]], Candidate]
    ctx: Context
    providers: Sequence[Provider]

    def step(self) -> Run:
        """The step of the fastest candidate."""
        return self.choose(self.ctx, self.providers).make(self.ctx)
