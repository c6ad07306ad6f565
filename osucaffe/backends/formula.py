"""The language of element-wise formulas: parsed once, evaluated by every backend.

A formula is one or more statements in Python's expression syntax, separated by `;`:

    y = where(a > 0, a, slope * a)
    g = g * scale + decay * w; h = momentum * h + rate * g; w = w - h

Operators: + - * / ** and unary minus; comparisons, but only as the first argument of where.
Functions: where, exp, log, log1p, expm1, sqrt, abs, tanh, erf, min, max, sign, floor. A name is an
operand (an array, read and written in place), a constant (fixed when the formula is compiled), a
scalar (given for each run), or a temporary (assigned first). A statement sees what those before it
assigned.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

FUNCTIONS = {
    "where": 3, "exp": 1, "log": 1, "log1p": 1, "expm1": 1, "sqrt": 1, "abs": 1, "tanh": 1,
    "erf": 1, "min": 2, "max": 2, "sign": 1, "floor": 1,
}  # fmt: skip
"""The functions of the language and how many arguments each takes."""

COMPARISONS = {
    ast.Gt: "greater", ast.GtE: "greater_equal", ast.Lt: "less", ast.LtE: "less_equal",
    ast.Eq: "equal", ast.NotEq: "not_equal",
}  # fmt: skip
ARITHMETIC = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide",
    ast.Pow: "power",
}  # fmt: skip

ELU = "y = where(a > 0, a, alpha * expm1(min(a, 0)))"
PRELU = "y = where(a > 0, a, a * b)"
RELU6 = "y = where(a > 0, min(a, n), negative_slope * a)"
"""Formulas for which libraries have code of their own: they know them by these words."""


@dataclass(frozen=True)
class Number:
    value: float


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class Operation:
    """A function, or an operator by the name that NumPy gives it (`add`, `greater`, ...)."""

    function: str
    arguments: tuple[Expression, ...]


Expression = Number | Name | Operation


@dataclass(frozen=True)
class Statement:
    target: str
    value: Expression


@dataclass(frozen=True)
class Formula:
    """The parsed form. reads: the names read before any assignment; writes: those assigned."""

    text: str
    statements: tuple[Statement, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    def bind(
        self,
        operands: Sequence[str],
        scalars: Sequence[str] = (),
        constants: Mapping[str, float] | None = None,
    ) -> Formula:
        """The formula with its constants put in and constant parts computed.

        Raises ValueError when a name is none of these, or a scalar or constant is assigned.
        """
        constants = constants or {}
        for name in self.reads:
            if name not in operands and name not in scalars and name not in constants:
                raise ValueError(f"formula {self.text!r}: unknown name {name!r}")
        for name in self.writes:
            if name in scalars or name in constants:
                raise ValueError(f"formula {self.text!r} assigns the constant {name!r}")
        statements = tuple(
            Statement(each.target, _fold(each.value, constants)) for each in self.statements
        )
        return _formula(self.text, statements)

    def temporaries(self, operands: Sequence[str]) -> tuple[str, ...]:
        """The assigned names that are not operands."""
        return tuple(name for name in self.writes if name not in operands)


@functools.cache
def parse(text: str) -> Formula:
    """Parse a formula. Raises ValueError, which quotes the text, when it is not one."""
    try:
        body = ast.parse("\n".join(part.strip() for part in text.split(";"))).body
    except SyntaxError as error:
        raise ValueError(f"formula {text!r}: {error.msg}") from None
    statements = []
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value):
                statements.append(Statement(target, _expression(value, text)))
            case _:
                raise ValueError(f"formula {text!r}: {ast.unparse(node)!r} assigns no name")
    if not statements:
        raise ValueError(f"formula {text!r} is empty")
    return _formula(text, tuple(statements))


def _formula(text: str, statements: tuple[Statement, ...]) -> Formula:
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for statement in statements:
        reads |= {name: None for name in names(statement.value) if name not in writes}
        writes[statement.target] = None
    return Formula(text, statements, tuple(reads), tuple(writes))


def names(expression: Expression) -> Iterator[str]:
    """The names that an expression reads, from left to right."""
    match expression:
        case Name(name):
            yield name
        case Operation(_, arguments):
            for argument in arguments:
                yield from names(argument)


def _expression(node: ast.expr, text: str, condition: bool = False) -> Expression:
    def operation(function: str, *arguments: ast.expr) -> Operation:
        conditions = [function == "where" and i == 0 for i in range(len(arguments))]
        parsed = map(_expression, arguments, [text] * len(arguments), conditions)
        return Operation(function, tuple(parsed))

    if isinstance(node, ast.Compare) != condition:
        what = "only a comparison can be" if condition else "a comparison can only be"
        raise ValueError(
            f"formula {text!r}: {ast.unparse(node)!r}: {what} the first argument of where"
        )
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as value):
            return Number(float(value))
        case ast.Name(id=name):
            return Name(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return operation("negative", operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            return operation(ARITHMETIC[type(op)], left, right)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            return operation(COMPARISONS[type(op)], left, right)
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
            if FUNCTIONS.get(function) == len(arguments):
                return operation(function, *arguments)
    raise ValueError(f"formula {text!r}: {ast.unparse(node)!r} is not supported in formulas")


SCALAR_FUNCTIONS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b, "power": lambda a, b: a**b, "negative": lambda a: -a,
    "greater": lambda a, b: a > b, "greater_equal": lambda a, b: a >= b,
    "less": lambda a, b: a < b, "less_equal": lambda a, b: a <= b,
    "equal": lambda a, b: a == b, "not_equal": lambda a, b: a != b,
    "where": lambda condition, a, b: a if condition else b,
    "exp": math.exp, "log": math.log, "log1p": math.log1p, "expm1": math.expm1,
    "sqrt": math.sqrt, "abs": abs, "tanh": math.tanh, "erf": math.erf, "min": min, "max": max,
    "sign": lambda a: float((a > 0) - (a < 0)), "floor": lambda a: float(math.floor(a)),
}  # fmt: skip
"""Every operation on single numbers, for the parts of a formula that hold no array."""


def _fold(expression: Expression, constants: Mapping[str, float]) -> Expression:
    """Put the constants in and compute the operations whose arguments are all numbers."""
    match expression:
        case Name(name) if name in constants:
            return Number(float(constants[name]))
        case Operation(function, arguments):
            folded = tuple(_fold(argument, constants) for argument in arguments)
            if function == "where" and isinstance(folded[0], Number):
                return folded[1] if folded[0].value else folded[2]
            if all(isinstance(argument, Number) for argument in folded):
                values = [argument.value for argument in folded]  # type: ignore[union-attr]
                return Number(SCALAR_FUNCTIONS[function](*values))
            return Operation(function, folded)
    return expression


C_OPERATORS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "greater": ">",
    "greater_equal": ">=", "less": "<", "less_equal": "<=", "equal": "==", "not_equal": "!=",
}  # fmt: skip
C_FUNCTIONS = {"power": "pow", "abs": "fabs"}


def to_c(
    text: str,
    operands: Sequence[str],
    scalars: Sequence[str] = (),
    constants: Mapping[str, float] | None = None,
    dtype: str = "float32",
) -> str:
    """The statements in C (and CUDA): they expect each operand and scalar as a variable.

    Load the operands into local variables first and store those in `writes` afterwards: then it
    does not matter whether operands share memory. Temporaries are declared.
    """
    formula = parse(text).bind(operands, scalars, constants)
    real, suffix = {"float32": ("float", "f"), "float64": ("double", "")}[dtype]

    def source(expression: Expression) -> str:
        match expression:
            case Number(value):
                return f"({float(value)!r}{suffix})" if value < 0 else f"{float(value)!r}{suffix}"
            case Name(name):
                return name
        function, arguments = expression.function, [source(each) for each in expression.arguments]
        if function in C_OPERATORS:
            return f"({arguments[0]} {C_OPERATORS[function]} {arguments[1]})"
        if function == "negative":
            return f"(-{arguments[0]})"
        if function == "where":
            return f"({arguments[0]} ? {arguments[1]} : {arguments[2]})"
        # NaN goes through, as in NumPy.
        if function in ("max", "min"):
            x, y = arguments
            return f"({x} {'>' if function == 'max' else '<'} {y} || {x} != {x} ? {x} : {y})"
        if function == "sign":
            x = arguments[0]
            return f"({x} != {x} ? {x} : ({real})(({x} > 0) - ({x} < 0)))"
        if expression.function == "power" and expression.arguments[1] == Number(2.0):
            return f"({arguments[0]} * {arguments[0]})"
        return f"{C_FUNCTIONS.get(function, function)}{suffix}({', '.join(arguments)})"

    lines = [f"{real} {name};" for name in formula.temporaries(operands)]
    lines += [f"{each.target} = {source(each.value)};" for each in formula.statements]
    return "\n".join(lines)
