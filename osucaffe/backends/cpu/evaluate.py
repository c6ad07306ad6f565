"""The evaluation of formulas by NumPy: in chunks that stay in cache, without allocating; and
the special functions that NumPy lacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..formula import COMPARISONS, SCALAR_FUNCTIONS, Expression, Name, Number, Statement, parse
from ..tensor import Shape

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: np.ndarray, out: np.ndarray) -> None:
    """The error function, element by element."""
    out[...] = _erf(x)


CHUNK = 1 << 15
"""Elements worked on at a time: a handful of float32 arrays of it fit into a core's L2 cache."""

UFUNCS: dict[str, Any] = {
    "abs": np.absolute, "min": np.minimum, "max": np.maximum, "erf": erf,
}  # fmt: skip
CONDITIONS = frozenset(COMPARISONS.values())


class Evaluate:
    """A compiled formula: call it with arrays, scalars and a range of elements.

    Each instance has scratch memory of its own: give every thread one.
    """

    def __init__(
        self,
        text: str,
        operands: Sequence[str],
        scalars: Sequence[str] = (),
        constants: Mapping[str, float] | None = None,
        *,
        dtype: str = "float32",
        length: int = CHUNK,
        shared: bool = False,
    ) -> None:
        """length: the most elements of a chunk. shared: operands may be the same memory."""
        formula = parse(text).bind(operands, scalars, constants)
        self._length = max(1, length)
        self._dtype = np.dtype(dtype)
        self._slots: list[Any] = [None] * (len(operands) + len(scalars))
        self._operands = len(operands)
        self._instructions: list[tuple[Any, tuple[int, ...], int]] = []
        self._prologue: list[tuple[Any, tuple[int, ...], int]] = []  # on single numbers
        self._numbers = set(range(self._operands, len(self._slots)))  # slots of single numbers
        self._registers: dict[int, np.ndarray] = {}
        self._free: dict[Any, list[int]] = {}

        self._where_is = {name: slot for slot, name in enumerate([*operands, *scalars])}
        self._stores: dict[int, int] = {}  # operands written last, and the registers they get
        last = formula.statements[-1]
        for statement in formula.statements:
            self._assign(statement, operands, wait=shared and statement is not last)
        for operand, value in self._stores.items():
            self._instructions.append((np.copyto, (operand, value), -1))

    def __call__(
        self, arrays: Sequence[np.ndarray], scalars: Sequence[float], start: int, stop: int
    ) -> None:
        """Evaluate elements start to stop of the flat arrays (operands in their order)."""
        self.set_scalars(scalars)
        for begin in range(start, stop, self._length):
            end = min(begin + self._length, stop)
            self.piece([array[begin:end] for array in arrays], (end - begin,))

    def set_scalars(self, scalars: Sequence[float]) -> None:
        """Set the scalars, in their order, and compute what depends on nothing else."""
        slots, operands = self._slots, self._operands
        slots[operands : operands + len(scalars)] = scalars
        for function, inputs, output in self._prologue:
            slots[output] = function(*[slots[slot] for slot in inputs])

    def piece(self, arrays: Sequence[np.ndarray], shape: Shape) -> None:
        """Evaluate one piece: arrays that broadcast to a shape of at most `length` elements."""
        slots = self._slots
        slots[: self._operands] = arrays
        size = math.prod(shape)
        for slot, register in self._registers.items():
            slots[slot] = register[:size].reshape(shape)
        for function, inputs, output in self._instructions:
            if output < 0:
                function(*[slots[slot] for slot in inputs])
            else:
                function(*[slots[slot] for slot in inputs], out=slots[output])

    def _assign(self, statement: Statement, operands: Sequence[str], wait: bool) -> None:
        """Append a statement. wait: keep what an operand gets in a register until the end."""
        target = statement.target
        direct = operands.index(target) if target in operands and not wait else None
        value = self._emit(statement.value, direct)
        if direct is not None:
            if value != direct:
                self._instructions.append((np.copyto, (direct, value), -1))
                self._release(value)
            self._stores.pop(direct, None)
            self._where_is[target] = direct
            return
        # A name for another name's value: that one may be assigned again.
        value = self._copy(value) if value in self._where_is.values() else value
        self._where_is[target] = value
        if target in operands:
            self._stores[operands.index(target)] = value

    def _emit(self, node: Expression, target: int | None = None) -> int:
        """Append the instructions of an expression; the slot that will hold its value."""
        if isinstance(node, Number):
            return self._number(node.value)
        if isinstance(node, Name):
            return self._where_is[node.name]
        inputs = tuple(self._emit(argument) for argument in node.arguments)
        if all(slot in self._numbers for slot in inputs):
            output = self._number(None)
            self._prologue.append((SCALAR_FUNCTIONS[node.function], inputs, output))
            return output
        if node.function == "where":
            return self._where(inputs, target)
        for slot in inputs:
            self._release(slot)
        dtype = np.dtype(bool) if node.function in CONDITIONS else self._dtype
        output = self._register(dtype) if target is None else target
        ufunc = UFUNCS.get(node.function) or getattr(np, node.function)
        match node.function, node.arguments[-1]:
            case "power", Number(2.0):
                ufunc, inputs = np.square, inputs[:1]
            case "power", Number(0.5):
                ufunc, inputs = np.sqrt, inputs[:1]
        self._instructions.append((ufunc, inputs, output))
        return output

    def _where(self, inputs: tuple[int, ...], target: int | None) -> int:
        """Append the choice between two values, which does not branch."""
        condition, value, otherwise = inputs
        output = self._register(self._dtype) if target is None else target
        if condition in self._numbers:
            self._instructions.append((_choose, (output, *inputs), -1))
            return output
        bits = np.dtype(f"i{self._dtype.itemsize}")
        mask, scratch = self._register(bits), self._register(bits)
        if self._slots[otherwise] == 0.0 and otherwise in self._numbers:
            value = self._copy(value) if value in self._numbers else value
            self._instructions.append((_keep, (output, condition, value, mask), -1))
        else:
            value, otherwise = (
                self._copy(slot) if slot in self._numbers else slot for slot in (value, otherwise)
            )
            slots = output, condition, value, otherwise, mask, scratch
            self._instructions.append((_select, slots, -1))
        for slot in (condition, value, otherwise, mask, scratch):
            self._release(slot)
        return output

    def _copy(self, slot: int) -> int:
        output = self._register(self._dtype)
        self._instructions.append((np.copyto, (output, slot), -1))
        return output

    def _number(self, value: float | None) -> int:
        self._slots.append(value)
        self._numbers.add(len(self._slots) - 1)
        return len(self._slots) - 1

    def _register(self, dtype: Any) -> int:
        if self._free.get(dtype):
            return self._free[dtype].pop()
        self._slots.append(None)
        self._registers[len(self._slots) - 1] = np.empty(self._length, dtype)
        return len(self._slots) - 1

    def _release(self, slot: int) -> None:
        """Let the register be used again, unless it holds a temporary of the formula."""
        if slot in self._registers and slot not in self._where_is.values():
            free = self._free.setdefault(self._registers[slot].dtype, [])
            if slot not in free:
                free.append(slot)


def _choose(output: np.ndarray, condition: bool, value: Any, otherwise: Any) -> None:
    np.copyto(output, value if condition else otherwise)


def _bits(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Floats as integers of the same bits; operands of another type are converted first."""
    floats = np.dtype(f"f{like.itemsize}")
    return (values if values.dtype == floats else values.astype(floats)).view(like.dtype)


def _keep(output: np.ndarray, condition: np.ndarray, value: np.ndarray, mask: np.ndarray) -> None:
    """output = value where the condition holds, else 0. mask: integers as wide as the values."""
    np.negative(condition.view(np.int8), out=mask)  # all bits set where it holds
    np.bitwise_and(_bits(value, mask), mask, out=output.view(mask.dtype))


def _select(
    output: np.ndarray,
    condition: np.ndarray,
    value: np.ndarray,
    otherwise: np.ndarray,
    mask: np.ndarray,
    scratch: np.ndarray,
) -> None:
    """output = value where the condition holds, else the other one, bit by bit.

    A copy with a mask takes five times as long where the condition changes at random.
    """
    value, otherwise = _bits(value, mask), _bits(otherwise, mask)
    np.negative(condition.view(np.int8), out=mask)
    np.bitwise_xor(value, otherwise, out=scratch)
    np.bitwise_and(scratch, mask, out=scratch)
    np.bitwise_xor(otherwise, scratch, out=output.view(mask.dtype))
