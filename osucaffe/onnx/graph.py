"""The graph in the making: its nodes, its constants, and which value a tensor has by now."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends.primitives.recording import Primitive
from ..backends.tensor import Shape, Tensor
from ..errors import UserError

KNOWN: dict[str, Any] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power,
    "Sqrt": np.sqrt, "Equal": np.equal, "Where": np.where, "Max": np.maximum, "Min": np.minimum,
    "Reshape": np.reshape,
}  # fmt: skip
"""What is computed at once where all inputs are constants: what is recalled of batches, say."""


class Missing(Exception):
    """A value that cannot be exported, and why."""


class Graph:
    """Nodes over values, which have names. A tensor that is written again gets another value."""

    def __init__(self) -> None:
        from onnx import helper, numpy_helper

        self._helper, self._numpy = helper, numpy_helper
        self.nodes: list[Any] = []
        self._arrays: dict[str, np.ndarray] = {}
        self.names: dict[Tensor, str] = {}
        """What to call the value of a blob's or a parameter's tensor."""
        self._values: dict[Tensor, str] = {}
        self._reasons: dict[Tensor, str] = {}
        self._taken: set[str] = set()
        self._reshaped: dict[tuple[str, Shape], str] = {}

    def name(self, hint: str) -> str:
        """A name that nothing has yet."""
        name, number = hint, 1
        while name in self._taken:
            number += 1
            name = f"{hint}.{number}"
        self._taken.add(name)
        return name

    # -- nodes -----------------------------------------------------------------------------------

    def node(self, operation: str, *inputs: str, hint: str = "", **attributes: Any) -> str:
        """Add a node of one output. Returns the name of that value."""
        if operation in KNOWN and self._arrays.keys() >= set(inputs):
            arrays = [self._arrays[name] for name in inputs]
            return self.constant(KNOWN[operation](*arrays), hint or operation)
        return self.nodes_of(operation, inputs, 1, hint=hint, **attributes)[0]

    def nodes_of(
        self, operation: str, inputs: Any, outputs: int, *, hint: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node of several outputs."""
        values = [self.name(hint or operation) for _ in range(outputs)]
        self.nodes.append(
            self._helper.make_node(operation, list(inputs), values, values[0], **attributes)
        )
        return values

    def constant(self, values: Any, hint: str = "constant") -> str:
        """A value that is known: float32, but for whole numbers (int64) and truths."""
        array = np.array(values, order="C")
        if array.dtype.kind == "f":
            array = array.astype(np.float32)
        elif array.dtype.kind in "iu":
            array = array.astype(np.int64)
        name = self.name(hint)
        self._arrays[name] = array
        return name

    def reshape(self, value: str, shape: Shape) -> str:
        """The value under another shape."""
        key = (value, tuple(shape))
        if key not in self._reshaped:
            self._reshaped[key] = self.node("Reshape", value, self.constant(np.array(shape, int)))
        return self._reshaped[key]

    # -- tensors ---------------------------------------------------------------------------------

    def read(self, tensor: Tensor) -> str:
        """The value that a tensor has by now. Raises Missing where it cannot be exported."""
        root = tensor.owner
        if root in self._reasons:
            raise Missing(self._reasons[root])
        if root not in self._values:
            raise Missing(f"nothing gives {root.name or 'a tensor'} a value that can be exported")
        value = self._values[root]
        return value if tensor.shape == root.shape else self.reshape(value, tensor.shape)

    def write(self, tensor: Tensor, value: str) -> None:
        """From here on the tensor has this value, which is of its shape."""
        root = tensor.owner
        if tensor.shape != root.shape:
            value = self.reshape(value, root.shape)
        self._values[root] = value
        self._reasons.pop(root, None)

    def give_up(self, call: Primitive, reason: str) -> None:
        """What the call writes has no value that can be exported."""
        for tensor in call.written_tensors():
            self._reasons[tensor.owner] = reason

    def hint(self, tensor: Tensor) -> str:
        """What to call the value that a tensor gets."""
        return self.names.get(tensor.owner, tensor.name or "value")

    # -- the end ---------------------------------------------------------------------------------

    def keep_needed(self, outputs: list[str]) -> None:
        """Drop the nodes and constants that no output depends on."""
        needed, nodes = set(outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                nodes.append(node)
        self.nodes = nodes[::-1]
        self._arrays = {name: array for name, array in self._arrays.items() if name in needed}

    def rename(self, names: dict[str, str]) -> None:
        """Give values other names; a value that has one of these makes room."""
        for node in self.nodes:
            for row in (node.input, node.output):
                row[:] = [self._renamed(value, names) for value in row]
        self._arrays = {self._renamed(name, names): array for name, array in self._arrays.items()}

    def constants(self) -> list[Any]:
        """The constants, as a file holds them."""
        return [self._numpy.from_array(array, name) for name, array in self._arrays.items()]

    @staticmethod
    def _renamed(value: str, names: dict[str, str]) -> str:
        if value in names:
            return names[value]
        return f"{value}.inner" if value in names.values() else value


def require_onnx() -> None:
    """UserError, with the remedy, where the package onnx is not installed."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise UserError('the export needs the package onnx: pip install "osucaffe[onnx]"') from None
