"""Owns what is computed from a net's parameters alone: once, and again when they have changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import chain

from ..backends.backend import Backend
from ..backends.primitives import Program
from ..backends.tensor import Call, Step, Tensor
from .calls import key


class Constants:
    """Tensors that hold as long as the parameters do, and the calls that make them.

    They outlive the programs that read them: a net that gets other shapes finds them again.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.stale = False
        """Whether the parameters have changed since the calls ran last."""
        self.new: list[Call] = []
        """Calls that have no step yet."""
        self._parameters = {key(tensor) for tensor in parameters}
        self._made: dict[Hashable, tuple[Tensor, ...]] = {}
        self._prepared: list[tuple[Call, Step]] = []

    def __bool__(self) -> bool:
        return bool(self._prepared or self.new)

    def is_parameter(self, tensor: Tensor) -> bool:
        """Whether it is a parameter, or a view of one."""
        return key(tensor) in self._parameters

    def get(
        self, name: Hashable, record: Callable[[Program], tuple[Tensor, ...]], *first: Call
    ) -> tuple[Tensor, ...]:
        """The tensors of this name, which `record` makes if they are new: it records the calls that
        compute them, behind the calls `first`, which a program would have run."""
        if name not in self._made:
            program = Program()
            self._made[name] = record(program)
            self.new += [*first, *program.calls]
            self.stale = True
        return self._made[name]

    def prepared(self, backend: Backend, steps: Iterable[Step]) -> None:
        """Take the steps of the new calls, and give what they write its memory."""
        for call, step in zip(self.new, steps, strict=True):
            for tensor in call.written_tensors():
                if (tensor.base or tensor).array is None:
                    whole = tensor.base or tensor
                    backend.place(whole, backend.allocate(backend.nbytes(whole)), 0)
            self._prepared.append((call, step))
        self.new = []

    def run(self, backend: Backend) -> None:
        """Compute them from the parameters."""
        for call, step in self._prepared:
            for scratch in call.scratch:
                backend.place(scratch, backend.allocate(backend.nbytes(scratch)), 0)
            step()
            for scratch in call.scratch:
                scratch.array = None
        written = chain.from_iterable(call.written_tensors() for call, _ in self._prepared)
        backend.follow([tensor.base or tensor for tensor in written])
        self.stale = False
