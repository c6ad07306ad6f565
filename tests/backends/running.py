"""The running of single primitives in tests, with garbage in all memory but the inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from osucaffe.backends.cpu.onednn.pooling import Workspace
from osucaffe.backends.primitives import Program
from osucaffe.backends.primitives.recording import PRIMITIVES, Primitive
from osucaffe.backends.tensor import Tensor


@dataclass(eq=False)
class Output:
    """Stands for a tensor that a primitive writes; the same one twice is one tensor."""

    shape: tuple[int, ...]
    dtype: str = "float32"


Spec = np.ndarray | Output | list | None


def place(backend: Any, tensor: Tensor) -> None:
    """Memory of its own, full of NaNs (as float32) and nonsense (as anything else)."""
    memory = backend.allocate(backend.nbytes(tensor))
    memory[:] = 0xFF
    backend.place(tensor, memory, 0)


class Runner:
    """Records calls on tensors made from specs, then prepares, places and runs them.

    convolved: images that are read have been written by a convolution, in a layout that it likes.
    """

    def __init__(self, backend: Any, *, flexible: bool = True, convolved: bool = False) -> None:
        self.backend, self.flexible, self.convolved = backend, flexible, convolved
        self.program = Program()
        self.calls: list[Primitive] = self.program.calls
        self.tensors: dict[int, tuple[Spec, Tensor]] = {}

    def tensor(self, spec: Spec) -> Any:
        """The tensor, or list of tensors, that stands for the spec."""
        if isinstance(spec, list):
            return [self.tensor(each) for each in spec]
        if spec is None or isinstance(spec, Tensor):
            return spec
        if id(spec) not in self.tensors:
            read = self.convolved and isinstance(spec, np.ndarray)
            if read and spec.ndim in (3, 4, 5) and spec.dtype.kind == "f":
                output = Output(spec.shape)
                self.tensors[id(spec)] = output, self._make(output)
                self._convolve(spec, self.tensors[id(spec)][1])
            else:
                self._make(spec)
        return self.tensors[id(spec)][1]

    def _make(self, spec: np.ndarray | Output) -> Tensor:
        whole = isinstance(spec, Output) or spec.dtype.kind in "iu"
        dtype = str(spec.dtype) if whole else "float32"
        tensor = Tensor(spec.shape, dtype, flexible=self.flexible and len(spec.shape) > 1)
        self.tensors[id(spec)] = spec, tensor
        return tensor

    def _convolve(self, values: np.ndarray, y: Tensor) -> None:
        channels, ones = values.shape[1], [1] * (values.ndim - 2)
        x, w = values.copy(), np.eye(channels).reshape(channels, channels, *ones)
        window = {"stride": ones, "pad": [0] * len(ones), "dilation": ones}
        self.program.convolution(self._make(x), self._make(w), None, y, **window, group=1)

    def record(self, name: str, tensors: dict[str, Spec], settings: dict[str, Any]) -> None:
        """Record a call of a primitive. It gets what only passes give, too."""
        given = {argument: self.tensor(spec) for argument, spec in tensors.items()}
        self.program.add(PRIMITIVES[name](**given, **settings))

    def prepare(self) -> Callable[[], None]:
        """Everything prepared and placed; the function returned sets the inputs and runs."""
        steps = self.backend.prepare(self.calls)
        for _, tensor in self.tensors.values():
            place(self.backend, tensor)
        for call in self.calls:
            for tensor in call.scratch:
                place(self.backend, tensor)

        def run() -> None:
            self.set_inputs()
            for step in steps:
                step()
            self.backend.synchronize()

        return run

    def set_inputs(self) -> None:
        """Write the arrays that the specs gave."""
        for spec, tensor in self.tensors.values():
            if isinstance(spec, np.ndarray):
                self.backend.write(tensor, spec)

    def read(self, spec: Spec) -> Any:
        """The values of a tensor (or of each of a list)."""
        if isinstance(spec, list):
            return [None if each is None else self.read(each) for each in spec]
        tensor = self.tensor(spec)
        if isinstance(tensor.layout, Workspace):  # oneDNN's own
            return tensor.array.copy()
        values = self.backend.read(tensor)
        if self.backend.name == "cpu" and tensor.size > tensor.count:  # its padding is zero
            assert np.count_nonzero(tensor.array) == np.count_nonzero(values)
        return values


def run_call(
    backend: Any,
    name: str,
    tensors: dict[str, Spec],
    settings: dict[str, Any] | None = None,
    *,
    flexible: bool = True,
    convolved: bool = False,
    first: tuple[str, dict[str, Spec], dict[str, Any]] | None = None,
    accumulates: tuple[str, ...] = (),
    relu_output: Spec = None,
) -> dict[str, Any]:
    """Run one primitive (after `first`, if given) and read everything that it writes.

    relu_output: the output of a ReLU (or of several), for a call into which the backward pass of it
    is folded.
    It runs twice from the same inputs: a step must not depend on what its last run left behind.
    """
    runner = Runner(backend, flexible=flexible, convolved=convolved)
    if first is not None:
        runner.record(*first)
    runner.record(name, tensors, settings or {})
    call = runner.calls[-1]
    call.accumulates = frozenset(accumulates)
    if relu_output is not None:
        call.relu_output = runner.tensor(relu_output)
    run = runner.prepare()
    results = []
    for _ in range(2):
        run()
        written = [name for name in call.written_fields if tensors.get(name) is not None]
        results.append({name: runner.read(tensors[name]) for name in written})
    np.testing.assert_equal(results[1], results[0])
    return results[0]
