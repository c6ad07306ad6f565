"""Owns update rules on oneDNN: those in which every new value is a sum of scaled buffers.

Such a rule (plain SGD with momentum and weight decay, for one) becomes a list of
`target = keep * target + coefficient * source`, run over pieces that stay in the cores' caches.
NumPy needs several calls for each of these, and the interpreter lock keeps its threads apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ...formula import SCALAR_FUNCTIONS, Expression, Name, Number, Operation, parse
from ...primitives.solvers import Update
from ...tensor import Step, Tensor
from ..primitives.solvers import merge_segments
from . import api
from .api import Descriptor, Library, Unsupported
from .memory import Located, Part, execution, in_sequence
from .preparation import Preparation

PIECE = 1 << 18
"""Elements of a piece: three buffers' pieces fit into the second-level caches of two cores."""
LARGE = 1 << 20
"""Weights whose gradient does not stay in the caches: it is never written, but computed as it is
added, if it has few rows of factors. With products AlexNet's fc7 takes 0.7 times as long in batches
of 16, 0.9 times in batches of 32, and 1.1 times in batches of 64."""
FEW_ROWS = 32

Form = dict[str, Expression]
"""A linear form: the coefficient of each buffer; under CONSTANT what is added to them."""
CONSTANT = ""
ONE, MINUS_ONE = Number(1.0), Number(-1.0)


@dataclass(frozen=True)
class Addition:
    """target = keep * target + coefficient * source; the coefficient is known at run time."""

    target: str
    keep: float
    coefficient: Expression
    source: str


def additions(
    text: str, buffers: Sequence[str], scalars: Sequence[str], constants: Mapping[str, float]
) -> list[Addition]:
    """A rule as additions. `g`, the gradient, is only read: what is assigned to it is a temporary.

    Raises Unsupported where the rule is not linear or needs a value that it has overwritten.
    """
    found: list[Addition] = []
    known: dict[str, Form] = {scalar: {CONSTANT: Name(scalar)} for scalar in scalars}
    known |= {buffer: {buffer: ONE} for buffer in buffers}
    for statement in parse(text).bind(buffers, scalars, constants).statements:
        form, target = _linear(statement.value, known), statement.target
        if target not in buffers or target == "g":
            known[target] = form
            continue
        keep = form.pop(target, None)
        if not isinstance(keep, Number) or not form or CONSTANT in form:
            raise Unsupported(f"{target} in {text!r}")
        for source, coefficient in form.items():
            found.append(Addition(target, keep.value, coefficient, source))
            keep = ONE
        known = {name: each for name, each in known.items() if name == target or target not in each}
    return found


def _linear(node: Expression, known: Mapping[str, Form]) -> Form:
    """An expression as a linear form of the buffers' present values."""
    match node:
        case Number():
            return {CONSTANT: node}
        case Name(name):
            if name not in known:
                raise Unsupported(f"{name} has been overwritten")
            return dict(known[name])
    function, forms = node.function, [_linear(each, known) for each in node.arguments]
    if all(list(form) == [CONSTANT] for form in forms):
        return {CONSTANT: _apply(function, *(form[CONSTANT] for form in forms))}
    match function, forms:
        case "negative", [form]:
            return _scaled(form, MINUS_ONE)
        case "add" | "subtract", [left, right]:
            for name, value in right.items():
                left[name] = _apply(function, left.get(name, Number(0.0)), value)
            return left
        case "multiply", [{"": factor, **rest}, form] if not rest:
            return _scaled(form, factor)
        case "multiply", [form, {"": factor, **rest}] if not rest:
            return _scaled(form, factor)
        case "divide", [form, {"": divisor, **rest}] if not rest:
            return _scaled(form, _apply("divide", ONE, divisor))
    raise Unsupported(f"{function} is not linear")


def _scaled(form: Form, factor: Expression) -> Form:
    return {name: _apply("multiply", value, factor) for name, value in form.items()}


def _apply(function: str, *arguments: Expression) -> Expression:
    numbers = [each.value for each in arguments if isinstance(each, Number)]
    if len(numbers) == len(arguments):
        return Number(SCALAR_FUNCTIONS[function](*numbers))
    return Operation(function, arguments)


def _value(expression: Expression, scalars: Mapping[str, float]) -> float:
    match expression:
        case Number(value):
            return value
        case Name(name):
            return scalars[name]
    arguments = [_value(each, scalars) for each in expression.arguments]
    return SCALAR_FUNCTIONS[expression.function](*arguments)


def update(p: Preparation, a: Update) -> Step:
    if a.sums is not None:
        raise Unsupported("rates of parameters that depend on their sums")
    buffers = {"w": a.weights, "g": a.gradients} | dict(zip(("h", "h2"), a.history, strict=False))
    rule = additions(a.formula, list(buffers), [*a.names, "rate", "decay"], a.constants)
    factors = list(dict.fromkeys((rate, decay) for _, _, rate, decay in a.segments))
    product = Product(p.library, a.factors, a.segments[0][0]) if a.factors else None
    # One number for each pair of multipliers and each addition, computed before the rest runs.
    values = np.zeros((len(factors), len(rule)), np.float32)
    coefficients = Tensor(values.shape)
    coefficients.place(values, values.ctypes.data)

    def compute() -> None:
        given = dict(zip(a.names, a.scalars.array.tolist(), strict=True))
        for row, (given["rate"], given["decay"]) in zip(values, factors, strict=True):
            for column, addition in enumerate(rule):
                row[column] = _value(addition.coefficient, given)
        if product:
            product.scale(values[0])

    def steps(start: int, stop: int, row: int) -> list[Step]:
        form, single = p.library.plain((stop - start,)), p.library.plain((1,))
        made = []
        for column, each in enumerate(rule):
            if product and each.source == "g":
                target = buffers[each.target]
                made.append(product.addition(column, each.keep, target, start, stop))
                continue
            chosen = p.library.describe(
                "binary", api.BINARY_MULTIPLY, form, single, form, keep=each.keep
            )
            arguments = {
                api.SRC: (Part(buffers[each.source], start), form),
                api.SRC_1: (Part(coefficients, row * len(rule) + column), single),
                api.DST: (Part(buffers[each.target], start), form),
            }
            made.append(execution(p.library, chosen, arguments))
        return made

    size = product.piece if product else PIECE
    pieces = [
        steps(first, min(first + size, stop), factors.index((rate, decay)))
        for start, stop, rate, decay in merge_segments(a.segments)
        for first in range(start, stop, size)
    ]
    return in_sequence([Step(compute), *chain.from_iterable(pieces)])


class Product:
    """The gradient of weights w (O, K), never in memory: of x (rows, K) and dy (rows, O).

    w must lie in blocks of rows of which each is a matrix (K, rows of a block), as the code for
    forward wants it. piece: the elements of a few blocks, two buffers of which stay in the caches.
    """

    def __init__(self, library: Library, factors: Sequence[Tensor], start: int) -> None:
        """start: where w begins in the buffers."""
        self._x, self._dy, w = factors
        self._start, (outputs, inputs) = start, w.shape
        rows = self._dy.count // outputs
        if w.count < LARGE or rows > FEW_ROWS or w.layout is None:
            raise Unsupported("a gradient that is small, or takes long to compute")
        *others, (axis, block) = w.layout.form.blocks or [(1, 0)]
        cuts = any(size for other, size in others if not other or inputs % size)
        if axis or cuts or len(others) > 1 or not w.layout.has_part((block, inputs)):
            raise Unsupported("blocks that are not matrices")
        self.piece = max(1, LARGE // (block * inputs)) * block * inputs
        self._library, self._rows, self._inputs, self._block = library, rows, inputs, block
        self._width = w.size // inputs  # the outputs, and the padding behind them
        self._scaled: dict[int, Tensor] = {}

    def scale(self, coefficients: np.ndarray) -> None:
        """Prepare an update, in which the gradient has these coefficients, one an addition."""
        for column, scaled in self._scaled.items():
            dy = self._dy.array.reshape(self._rows, -1)
            np.multiply(dy, coefficients[column], out=scaled.array[:, : dy.shape[1]])

    def addition(self, column: int, keep: float, target: Tensor, start: int, stop: int) -> Step:
        """target = keep * target + coefficient * gradient, for whole blocks."""
        rows, inputs, block, width = self._rows, self._inputs, self._block, self._width
        if column not in self._scaled:
            self._scaled[column] = scaled = Tensor((rows, width))
            zeros = np.zeros(scaled.shape, np.float32)
            scaled.place(zeros, zeros.ctypes.data)
        count = (stop - start) // (block * inputs)
        x = self._library.plain((1, inputs, rows), (rows * inputs, 1, inputs))
        dy = self._library.plain((count, rows, block), (block, width, 1))
        product = self._library.plain((count, inputs, block))
        chosen = self._library.describe("matmul", x, dy, None, product, keep=keep)
        if chosen.is_reference or chosen.has(api.SCRATCHPAD):
            raise Unsupported(chosen.implementation)
        arguments: dict[int, tuple[Located, Descriptor]] = {
            api.SRC: (self._x, x),
            api.WEIGHTS: (Part(self._scaled[column], (start - self._start) // inputs), dy),
            api.DST: (Part(target, start), product),
        }
        return execution(self._library, chosen, arguments)
