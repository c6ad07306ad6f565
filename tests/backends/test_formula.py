"""The language of formulas: what it accepts, and that NumPy and C compute the same."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import tracemalloc

import numpy as np
import pytest

from osucaffe.backends.cpu.evaluate import CHUNK, Evaluate
from osucaffe.backends.formula import parse, to_c

MOMENTUM = "t = g * scale + decay * w; h = momentum * h + rate * t; w = w - h"

FORMULAS: dict[str, tuple[str, dict[str, float], dict[str, float]]] = {
    "relu": ("y = where(a > 0, a, slope * a)", {"slope": 0.1}, {}),
    "in place": ("a = where(a <= b, a * 2, -b); b = b + a", {}, {}),
    "momentum": (
        MOMENTUM.replace("g", "a").replace("w", "b").replace("h ", "y ").replace("- h", "- y"),
        {"momentum": 0.9, "decay": 0.01}, {"scale": 0.5, "rate": 0.1},
    ),
    "functions": (
        "t = exp(-abs(a)); y = log1p(t) + expm1(t) - log(t + 1) * sqrt(t) + tanh(a) + erf(b)",
        {}, {},
    ),
    "steps": ("y = sign(a) * floor(b * 3) + min(a, b) - max(a, 0.5)", {}, {}),
    "powers": ("y = abs(a) ** 1.5 + b ** 2 + abs(b) ** 0.5 + (a - b) ** 3", {}, {}),
    "comparisons": (
        "y = where(a >= b, 1, where(a < 0, 2, where(b == 0, 3, where(a != 1, b, 4))))", {}, {},
    ),
    "scalars only": ("t = (k - s) ** 2; u = t; y = a * t + where(s < k, u, 2)", {"k": 3}, {"s": 2}),
    "copies": ("t = a; a = b; b = t; u = b; y = u", {}, {}),
    "constant": ("y = 2", {}, {}),
    "reused temporary": ("t = a + b; u = t * t; t = t - u; y = t * u + a; b = t", {}, {}),
}  # fmt: skip
"""Text over operands a, b, y, with its constants and its scalars."""


def python(text: str, names: dict[str, float]) -> dict[str, float]:
    """The formula on single numbers, evaluated by Python itself."""
    functions = {
        "where": lambda c, a, b: a if c else b, "exp": math.exp, "log": math.log,
        "log1p": math.log1p, "expm1": math.expm1, "sqrt": math.sqrt, "abs": abs,
        "tanh": math.tanh, "erf": math.erf, "min": min, "max": max, "floor": math.floor,
        "sign": lambda a: math.copysign(1, a) if a else 0,
    }  # fmt: skip
    exec("\n".join(part.strip() for part in text.split(";")), functions, names)
    return names


def operands(dtype: str, size: int) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    a, b, y = (random.standard_normal(size).astype(dtype) for _ in range(3))
    a[:4], b[:4] = [0, 1, -1, 0.5], [0, 1, 1, 0]
    return [a, b, y]


def wanted(text: str, arrays: list[np.ndarray], given: dict[str, float]) -> list[np.ndarray]:
    rows = [
        python(text, dict(zip("aby", map(float, values), strict=True)) | given)
        for values in zip(*arrays, strict=True)
    ]
    return [np.array([row[name] for row in rows], np.float64) for name in "aby"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FORMULAS)
def test_numpy_computes_what_python_computes(name: str, dtype: str) -> None:
    text, constants, scalars = FORMULAS[name]
    arrays = operands(dtype, 100)
    expected = wanted(text, arrays, constants | scalars)
    # Chunks of 32: the last one is shorter.
    evaluate = Evaluate(text, "aby", list(scalars), constants, dtype=dtype, length=32)
    evaluate(arrays, list(scalars.values()), 0, 100)
    for found, right in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=2e-6 if dtype == "float32" else 1e-13,
                                   atol=1e-6 if dtype == "float32" else 1e-13)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_c_computes_what_python_computes(dtype: str, tmp_path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    real = {"float32": "float", "float64": "double"}[dtype]
    source = ["#include <math.h>"]
    for number, (text, constants, scalars) in enumerate(FORMULAS.values()):
        given = ", ".join(f"{real} {name}" for name in scalars)
        source.append(
            f"void f{number}(int n, {real} *as, {real} *bs, {real} *ys{', ' * bool(given)}{given})"
            f" {{ for (int i = 0; i < n; i++) {{ {real} a = as[i], b = bs[i], y = ys[i];\n"
            + to_c(text, "aby", list(scalars), constants, dtype)
            + "\nas[i] = a; bs[i] = b; ys[i] = y; } }"
        )
    (tmp_path / "f.c").write_text("\n".join(source))
    library = tmp_path / "f.so"
    subprocess.run(
        [compiler, "-Wall", "-Werror", "-shared", "-fPIC", tmp_path / "f.c", "-o", library, "-lm"],
        check=True,
    )
    loaded = ctypes.CDLL(str(library))
    scalar = {"float32": ctypes.c_float, "float64": ctypes.c_double}[dtype]
    for number, (text, constants, scalars) in enumerate(FORMULAS.values()):
        arrays = operands(dtype, 50)
        expected = wanted(text, arrays, constants | scalars)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        loaded[f"f{number}"](50, *pointers, *map(scalar, scalars.values()))
        for found, right in zip(arrays, expected, strict=True):
            tolerance = 2e-6 if dtype == "float32" else 1e-13
            np.testing.assert_allclose(found, right, rtol=tolerance, atol=tolerance, err_msg=text)


def test_operands_that_share_memory_are_all_read_before_one_is_written() -> None:
    a = np.arange(5.0)
    before = a.copy()
    y, z = a, np.empty(5)
    evaluate = Evaluate("y = a * 2; z = a + y", ["a", "y", "z"], dtype="float64", shared=True)
    evaluate([a, y, z], (), 0, 5)
    np.testing.assert_array_equal(a, before * 2)
    np.testing.assert_array_equal(z, before * 3)


def test_only_the_range_asked_for_is_touched() -> None:
    a = np.zeros(3 * CHUNK, np.float32)
    Evaluate("a = a + 1", ["a"])([a], (), 5, CHUNK + 7)
    assert a[:5].sum() == 0
    assert a.sum() == CHUNK + 2


def test_operands_may_be_of_other_types() -> None:
    a, y = np.array([0, 1, 2], np.uint8), np.zeros(3, np.float32)
    Evaluate("y = where(a > 0, a, -1)", "ay")([a, y], (), 0, 3)
    assert y.tolist() == [-1, 1, 2]


def test_a_piece_may_be_as_long_as_was_asked_for() -> None:
    a, y = np.ones((2, CHUNK), np.float32), np.zeros((2, CHUNK), np.float32)
    evaluate = Evaluate("y = where(a > 0, a * 3 + 1, a)", "ay", length=2 * CHUNK)
    evaluate.piece([a, y], y.shape)
    assert (y == 4).all()


def test_there_may_be_no_elements() -> None:
    Evaluate("a = a + 1", "a", length=0)([np.zeros(0, np.float32)], (), 0, 0)


def test_running_allocates_nothing() -> None:
    arrays = [np.ones(4 * CHUNK, np.float32) for _ in range(3)]
    text, constants, scalars = FORMULAS["momentum"]
    evaluate = Evaluate(text, "aby", list(scalars), constants)
    evaluate(arrays, list(scalars.values()), 0, 4 * CHUNK)
    tracemalloc.start()
    evaluate(arrays, list(scalars.values()), 0, 4 * CHUNK)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8192


def test_the_parsed_form_names_what_is_read_and_written() -> None:
    formula = parse(MOMENTUM)
    assert formula.reads == ("g", "scale", "decay", "w", "momentum", "h", "rate")
    assert formula.writes == ("t", "h", "w")
    assert formula.temporaries(["w", "g", "h"]) == ("t",)
    bound = formula.bind(["w", "g", "h"], ["rate"], {"momentum": 0, "scale": 1, "decay": 0})
    assert bound.reads == ("g", "w", "h", "rate")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("y = ", "invalid syntax"),
        ("a + b", "assigns no name"),
        ("y += a", "assigns no name"),
        ("y, z = a", "assigns no name"),
        ("", "is empty"),
        ("y = sinh(a)", "not supported in formulas"),
        ("y = exp(a, b)", "not supported in formulas"),
        ("y = a[0]", "not supported in formulas"),
        ("y = 'a'", "not supported in formulas"),
        ("y = a % b", "not supported in formulas"),
        ("y = 1 < a < 2", "comparison"),
        ("y = a > b", "only be the first argument of where"),
        ("y = where(a, b, 1)", "only a comparison can be the first argument"),
        ("y = __import__('os')", "not supported in formulas"),
    ],
)
def test_what_is_not_in_the_language_is_an_error_that_quotes_it(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as error:
        Evaluate(text, "aby")
    assert repr(text) in str(error.value)


def test_names_must_be_known_and_constants_stay() -> None:
    with pytest.raises(ValueError, match="unknown name 'slope'"):
        Evaluate("y = slope * a", "ay")
    with pytest.raises(ValueError, match="assigns the constant 'k'"):
        to_c("k = a", "a", constants={"k": 1.0})
