"""Calls on stand-ins: tensors that lie as a call's own do, with random numbers in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...tensor import Run, Tensor, sequence
from ..call import Candidate, Context, TuningGpu
from ..layout import C_TYPES, dtype_of, in_dtype
from ..passes.convert import convert
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch

TRIAL_WORDS = 2**18
"""After that many numbers, those of memory to try candidates on begin again."""
SAMPLES = 4096
"""Of each output, that many elements are compared."""
UNWRITTEN = 0xFF
"""A byte: made of it, numbers of all kinds of floats are none."""


def trial_numbers() -> np.ndarray:
    """What memory to try candidates on is filled with: TRIAL_WORDS words."""
    number = np.arange(TRIAL_WORDS, dtype=np.uint32) * np.uint32(2654435761)
    # With these bits of the exponent, float32 and bfloat16 are 1/128 to 2, float16 are 1 to 2.
    return number & np.uint32(0x83FF83FF) | np.uint32(0x3C003C00)


def trial_memory(backend: TuningGpu, nbytes: int) -> Any:
    """Memory to try a candidate on: finite numbers of either sign in every element type."""
    memory = backend.allocate(-(-nbytes // 4) * 4)
    fill(backend, int(memory.data.ptr), -(-nbytes // 4) * 4)
    return memory


def fill(backend: TuningGpu, begin: int, size: int) -> None:
    """Fill memory with such numbers, by copies on the device: while kernels are compiled, the host
    waits 10 to 20 ms for an upload."""
    runtime, filled = backend.cupy.cuda.runtime, 0
    source, kind = backend.trial_source.address, runtime.memcpyDeviceToDevice
    while filled < size:
        more = min(filled or TRIAL_WORDS * 4, size - filled)
        runtime.memcpyAsync(begin + filled, source, more, kind, backend.stream.ptr)
        source, filled = begin, filled + more


def _moments(sums: np.ndarray) -> np.ndarray:
    """The mean and the deviation of each channel, of what `choose_sums` describes: of each part the
    sums of the numbers less a shift and of their squares, that shift, and how many they are."""
    one, two, shift, count = np.where(sums[3] > 0, sums, 0).astype(np.float64)
    total = count.sum(axis=0)
    mean = (one + count * shift).sum(axis=0) / np.maximum(total, 1)
    apart = shift - mean
    square = (two + 2 * apart * one + count * apart**2).sum(axis=0) / np.maximum(total, 1)
    return np.stack([mean, np.sqrt(square)])


class Trial:
    """A call on stand-ins, which candidates run in turn."""

    def __init__(self, ctx: Context) -> None:
        self._backend = ctx.backend
        self._stand_ins: dict[Tensor, Tensor] = {}
        self._low: dict[Tensor, Tensor] = {}
        self._like = Context(self._backend, ctx.call.on(self._stand_in), self)
        self._targets: list[Tensor] = []
        self._sampling: list[Run] = []
        # Candidates may sum other parts for themselves: what comes of all of them is compared.
        self._sums: Tensor | None = getattr(self._like.call, "sums", None)
        for tensor in self._like.call.written_tensors():
            if tensor is self._sums:
                continue
            target = Tensor((SAMPLES,))
            self._backend.allocate_for(target)
            function = kernel("sample", "sample", T=C_TYPES[dtype_of(tensor)])
            arguments = [tensor, target, np.int64(tensor.size), np.int32(SAMPLES)]
            self._sampling.append(launch(function, blocks_for(SAMPLES), arguments))
            self._targets.append(target)

    def _stand_in(self, field: str, tensor: Tensor) -> Tensor:
        if tensor not in self._stand_ins:
            made = Tensor(tensor.shape, tensor.dtype, tensor.name, flexible=True)
            if tensor.layout is not None:
                made.layout = tensor.layout
            made.flexible = False
            self._place(made)
            self._stand_ins[tensor] = made
        return self._stand_ins[tensor]

    def _place(self, tensor: Tensor) -> None:
        memory = trial_memory(self._backend, self._backend.nbytes(tensor))
        self._backend.place(tensor, memory, 0)

    def low_precision(self, w: Tensor) -> Tensor:
        """What stands for the 16-bit copy of a parameter (see `Cuda.low_precision`): the same
        numbers, or candidates that read the one would not agree with those that read the other."""
        if w not in self._low:
            copy = in_dtype(w, self._backend.dtype)
            self._place(copy)
            convert(w, copy)()
            self._low[w] = copy
        return self._low[w]

    def step(self, candidate: Candidate) -> Run:
        """What runs a candidate, with what is converted for it before and after."""
        like = self._like.copy()
        step = candidate.make(like)
        for scratch in like.call.scratch:
            self._backend.allocate_for(scratch)
        return sequence([*like.before, step, *like.after])

    def poison_outputs(self) -> None:
        """Let the outputs hold what no candidate has written: numbers to add to, or none."""
        runtime, stream = self._backend.cupy.cuda.runtime, self._backend.stream.ptr
        call = self._like.call
        added = {getattr(call, name) for name in call.accumulates}
        for tensor in call.written_tensors():
            size = self._backend.nbytes(tensor)
            if tensor in added:
                fill(self._backend, tensor.address, -(-size // 4) * 4)
            else:
                runtime.memsetAsync(tensor.address, UNWRITTEN, size, stream)

    def hides_nan(self, run: Run) -> bool:
        """Whether NaN in what is read is none after the ReLU of what computes it."""
        call, backend = self._like.call, self._backend
        if getattr(call, "relu", None) is None:
            return False
        place, size = call.x.address, backend.nbytes(call.x)
        backend.cupy.cuda.runtime.memsetAsync(place, UNWRITTEN, size, backend.stream.ptr)
        run()
        self.sample()
        hidden = not any(np.isnan(each).any() for each in self.samples())
        fill(backend, place, -(-size // 4) * 4)
        return hidden

    def sample(self) -> None:
        """Take some elements of each output, always the same ones; `samples` has them then."""
        for step in self._sampling:
            step()

    def samples(self) -> list[np.ndarray]:
        """What was taken last of each output."""
        found = [self._backend.read(target) for target in self._targets]
        if self._sums is not None:
            found.append(_moments(self._sums.array.get().reshape(self._sums.layout.shape)))
        return found

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of all memory."""
        self._stand_ins.clear()
        self._low.clear()
        self._targets.clear()
        self._sampling.clear()
        del self._like  # which refers to this
