"""What is computed from a net's parameters alone: once, and again after they have changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from ...backends.backend import Backend
from ...backends.primitives import Program
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Run, Tensor
from .editing import operands, owners


class Constants:
    """Tensors that hold as long as the parameters do, and the calls that make them.

    They outlive the programs that read them: a net that gets other shapes finds them again.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.stale = False
        """Whether the parameters have changed since the calls ran last."""
        self.new: list[Primitive] = []
        """Calls that have no step yet."""
        self._parameters = owners(parameters)
        self._made: dict[Hashable, tuple[Tensor, ...]] = {}
        self._prepared: list[tuple[Primitive, Run]] = []
        self._last_use: dict[Tensor, int] = {}
        """Of what is not a result: the number of the last call that uses it."""

    def __bool__(self) -> bool:
        return bool(self._prepared or self.new)

    @property
    def calls(self) -> list[Primitive]:
        """All calls that make them, in their order."""
        return [*(call for call, _ in self._prepared), *self.new]

    def is_parameter(self, tensor: Tensor) -> bool:
        """Whether it is a parameter, or a view of one."""
        return tensor.owner in self._parameters

    def get(
        self, name: Hashable, record: Callable[[Program], tuple[Tensor, ...]], *first: Primitive
    ) -> tuple[Tensor, ...]:
        """The tensors of this name, which `record` makes if they are new: it records the calls that
        compute them, after the calls `first`, which a program would have run."""
        if name not in self._made:
            program = Program()
            self._made[name] = record(program)
            self.new += [*first, *program.calls]
            self.stale = True
            for call in self.new:  # in whatever precision the net runs, they stay exact
                for tensor in call.read_tensors():
                    if self.is_parameter(tensor) and tensor.layout_undecided:
                        tensor.root.flexible = False
        return self._made[name]

    def prepared(self, backend: Backend, steps: Iterable[Run]) -> None:
        """Take the steps of the new calls, and give their results memory."""
        results = owners(tensor for made in self._made.values() for tensor in made)
        for call, step in zip(self.new, steps, strict=True):
            self._prepared.append((call, step))
            for tensor in owners(operands(call)) - self._parameters:
                if tensor not in results:
                    self._last_use[tensor] = len(self._prepared)
                elif tensor.array is None:
                    backend.allocate_for(tensor)
        self.new = []

    def run(self, backend: Backend) -> None:
        """Compute them from the parameters. What only leads to them has memory for so long."""
        for number, (call, step) in enumerate(self._prepared, 1):
            for tensor in (*call.written_tensors(), *call.scratch):
                if tensor.owner.array is None:
                    backend.allocate_for(tensor.owner)
            step()
            for tensor in operands(call):
                if self._last_use.get(tensor.owner) == number:
                    tensor.owner.array = None
            for scratch in call.scratch:
                scratch.array = None
        backend.refresh_copies(tensor for made in self._made.values() for tensor in made)
        self.stale = False
