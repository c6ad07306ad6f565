"""Update rules on oneDNN: those in which every new value is a sum of scaled buffers.

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
from .api import Unsupported
from .memory import Part, execution, in_sequence
from .preparation import Preparation

PIECE = 1 << 18
"""Elements of a piece: three buffers' pieces fit into the second-level caches of two cores."""

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
    # One number for each pair of multipliers and each addition, computed before the rest runs.
    values = np.zeros((len(factors), len(rule)), np.float32)
    coefficients = Tensor(values.shape)
    coefficients.place(values, values.ctypes.data)

    def compute() -> None:
        given = dict(zip(a.names, a.scalars.array.tolist(), strict=True))
        for row, (given["rate"], given["decay"]) in zip(values, factors, strict=True):
            for column, addition in enumerate(rule):
                row[column] = _value(addition.coefficient, given)

    def steps(start: int, stop: int, row: int) -> list[Step]:
        form, single = p.library.plain((stop - start,)), p.library.plain((1,))
        made = []
        for column, each in enumerate(rule):
            chosen = p.library.describe(
                "binary", api.BINARY_MULTIPLY, form, single, form, sum_scale=each.keep
            )
            arguments = {
                api.SRC: (Part(buffers[each.source], start), form),
                api.SRC_1: (Part(coefficients, row * len(rule) + column), single),
                api.DST: (Part(buffers[each.target], start), form),
            }
            made.append(execution(p.library, chosen, arguments))
        return made

    pieces = [
        steps(first, min(first + PIECE, stop), factors.index((rate, decay)))
        for start, stop, rate, decay in merge_segments(a.segments)
        for first in range(start, stop, PIECE)
    ]
    return in_sequence([Step(compute), *chain.from_iterable(pieces)])
