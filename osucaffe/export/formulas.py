"""Owns element-wise formulas as ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping

from ..backends.formula import Expression, Name, Number, parse
from .graph import Graph

OPERATIONS = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "power": "Pow",
    "negative": "Neg", "where": "Where", "greater": "Greater", "greater_equal": "GreaterOrEqual",
    "less": "Less", "less_equal": "LessOrEqual", "equal": "Equal", "exp": "Exp", "log": "Log",
    "sqrt": "Sqrt", "abs": "Abs", "tanh": "Tanh", "erf": "Erf", "min": "Min", "max": "Max",
    "sign": "Sign", "floor": "Floor",
}  # fmt: skip


def evaluate(
    graph: Graph, formula: str, operands: Mapping[str, str], constants: Mapping[str, float] | None
) -> dict[str, str]:
    """The values of all that a formula assigns. operands: the values of the names that it reads."""
    values = dict(operands)
    for statement in parse(formula).bind(list(values), (), constants).statements:
        values[statement.target] = _value(graph, statement.value, values)
    return values


def _value(graph: Graph, expression: Expression, values: Mapping[str, str]) -> str:
    match expression:
        case Number(number):
            return graph.constant(float(number))
        case Name(name):
            return values[name]
    inputs = [_value(graph, each, values) for each in expression.arguments]
    match expression.function:
        case "log1p":
            return graph.node("Log", graph.node("Add", inputs[0], graph.constant(1.0)))
        case "expm1":
            return graph.node("Sub", graph.node("Exp", inputs[0]), graph.constant(1.0))
        case "not_equal":
            return graph.node("Not", graph.node("Equal", *inputs))
    return graph.node(OPERATIONS[expression.function], *inputs)
