"""docs/caffe-compatibility.md names a row for everything, and for every row tests that exist.

Claims of that page that no other test shows are tested here too.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.cli import COMMANDS
from osucaffe.cli.loading import make_backend
from osucaffe.cli.options import Device
from osucaffe.errors import UserError
from osucaffe.layer import layer_types, messages_of
from osucaffe.proto import LayerParameter, SolverParameter
from osucaffe.solvers import Observer, TestResult

from .layers.nets import build, inputs, one_layer
from .layers.test_fixtures import Fixture
from .layers.test_gradients import CASES
from .layers.test_values import VALUES
from .solvers.runs import parameters, solver

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "caffe-compatibility.md"
STATES = {"works", "differs", "not", "own"}
FORKS = 100_000_000
"""Above it lie the numbers of fields that forks of Caffe have."""
OWN = {"GELU", "L1Loss", "LayerNorm", "PatchData", "PixelShuffle"}

Row = tuple[str, str, str, list[str]]
random = np.random.default_rng(5)


@cache
def rows() -> dict[str, list[Row]]:
    """The rows of each section: feature, state, difference, tests."""
    found: dict[str, list[Row]] = {}
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("|") and not re.match(r"\|-|\| [\w, ]+ \| \|", line):
            feature, state, how, tests = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(section, []).append(
                (feature, state, how, re.findall(r"`([^`]+)`", tests))
            )
    return found


@cache
def functions(file: str) -> set[str]:
    """The test functions of a file below tests/."""
    tree = ast.parse((TESTS / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def problem(test: str, feature: str) -> str:
    """What is wrong with the name of a test, as a row gives it."""
    kind, _, name = test.partition(":")
    if kind == "fixture":
        layer, solver, of_fork = (
            TESTS / "fixtures" / path / f"{kind}_{name}.npz"
            for path, kind in (("caffe", "layer"), ("caffe", "solver"), ("forks", "layer"))
        )
        layer = of_fork if of_fork.exists() else layer
        if not layer.exists():
            return "" if solver.exists() else "no such file"
        return "" if Fixture(layer).type == feature else f"is of a layer {Fixture(layer).type}"
    if kind in ("gradient", "value"):
        cases = CASES if kind == "gradient" else VALUES
        return "" if any(case.values[0] == name for case in cases) else "no such case"
    file, _, function = test.partition("::")
    if not (TESTS / file).is_file():
        return "no such file"
    return "" if function in functions(file) else "no such test"


def test_every_row_names_tests_that_exist() -> None:
    wrong = []
    for section, content in rows().items():
        for feature, state, how, tests in content:
            if state not in STATES or not tests or (state in ("differs", "not") and not how):
                wrong.append(f"{section}, {feature}: incomplete")
            wrong += [
                f"{section}, {feature}: {test}: {reason}"
                for test in tests
                if (reason := problem(test, feature))
            ]
    assert not wrong
    assert sum(len(content) for content in rows().values()) > 120


def test_tests_in_the_text_exist() -> None:
    named = re.findall(r"`(\w[\w/]*\.py::\w+)`", PAGE.read_text())
    assert len(named) > 100
    assert [name for name in named if problem(name, "")] == []


def test_every_layer_type_has_a_row() -> None:
    listed = [feature for feature, *_ in rows()["Layer types"]]
    assert sorted(listed) == sorted(layer_types())
    own = {feature for feature, state, *_ in rows()["Layer types"] if state == "own"}
    assert own == OWN


def test_every_message_of_the_schema_belongs_to_a_row() -> None:
    """A layer type that the schema knows, and nobody implements, would need a row too."""
    types = {
        field.message_type.name.removesuffix("Parameter")
        for field in LayerParameter.DESCRIPTOR.fields
        if field.name.endswith("_param") and field.message_type is not None and field.number < FORKS
    }
    shared = {"Transformation", "Loss", "Recurrent"}  # of several types
    assert types - shared <= {feature for feature, *_ in rows()["Layer types"]}


def test_every_message_of_a_fork_has_a_layer_or_a_row() -> None:
    read = {name for layer in layer_types().values() for name in messages_of(layer)}
    forks = {
        field.name
        for field in LayerParameter.DESCRIPTOR.fields
        if field.name.endswith("_param") and field.number >= FORKS
    }
    cells = " ".join(feature for feature, *_ in rows()["Fields of forks"])
    assert set(re.findall(r"`(\w+_param)`", cells)) == forks - read


def test_layers_that_are_said_to_lack_do() -> None:
    part = PAGE.read_text().partition("### Layers that are not there")[2].partition("## ")[0]
    named = {name for line in part.split("- ")[1:] for name in re.findall(r"`(\w+)`[,:]", line)}
    assert len(named) > 5
    assert not named & set(layer_types())


def test_every_solver_field_has_a_row() -> None:
    listed = [
        name for feature, *_ in rows()["Solver fields"] for name in re.findall("`(.+?)`", feature)
    ]
    assert sorted(listed) == sorted(SolverParameter.DESCRIPTOR.fields_by_name)


def test_every_command_and_flag_of_caffe_has_a_row() -> None:
    text = " ".join(feature for feature, *_ in rows()["The command line"])
    flags = "gpu solver model phase level stage snapshot weights iterations sigint_effect"
    for flag in [*flags.split(), "sighup_effect"]:
        assert f"`-{flag}`" in text
    for command in ("train", "test", "time", "device_query", "convert_imageset"):
        assert f"`{command}`" in text
        assert command in COMMANDS


# What follows shows claims of the page that no other test does.


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def step_of_the_cell(c: np.ndarray, gates: np.ndarray, keep: np.ndarray) -> list[np.ndarray]:
    """Input, forget and output gates and the candidate, in this order; keep 0: a new sequence."""
    i, f, o = (sigmoid(gates[..., 3 * n : 3 * n + 3]) for n in range(3))
    following = keep[..., None] * f * c + i * np.tanh(gates[..., 9:])
    return [following, o * np.tanh(following)]


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        (
            'type: "BatchReindex"',
            [random.random((3, 2)), np.array([2, 0, 0, 1, 2])],
            lambda x, i: [x[i]],
        ),
        (
            'type: "Swish" swish_param { beta: 1.5 }',
            [random.standard_normal((4, 5))],
            lambda x: [x * sigmoid(1.5 * x)],
        ),
        (
            'type: "LSTMUnit"',
            [random.standard_normal((1, 2, n)) for n in (3, 12)] + [np.array([[1.0, 0.0]])],
            step_of_the_cell,
        ),
    ],
)
def test_layers_that_have_a_formula(text: str, given: list[np.ndarray], expected: Any) -> None:
    wanted = expected(*given)
    tops = "".join(f'top: "y{n}" ' for n in range(len(wanted)))
    net = one_layer(f"{text} {tops}", {f"x{n}": each for n, each in enumerate(given)})
    for n, values in enumerate(wanted):
        np.testing.assert_allclose(net.read(f"y{n}"), values, rtol=1e-5, atol=1e-6)


def test_a_parameter_is_a_top() -> None:
    net = build(
        'layer { name: "op" type: "Parameter" top: "y" '
        "parameter_param { shape { dim: 2 dim: 3 } } }",
        Cpu(),
    )
    values = random.random((2, 3), np.float32)
    net.backend.write(net.parameters[0].blob.data, values)
    net.forward()
    np.testing.assert_array_equal(net.read("y"), values)


def test_a_window_outside_the_image_is_refused() -> None:
    text = inputs({"x": (1, 1, 7, 7)}) + (
        'layer { name: "op" type: "Pooling" bottom: "x" top: "y" '
        "pooling_param { pool: AVE kernel_size: 1 stride: 4 %s } }"
    )
    with pytest.raises(UserError, match="lies outside extent 7: use round_mode: FLOOR"):
        build(text % "", Cpu())
    assert build(text % "round_mode: FLOOR", Cpu()).blobs["y"].shape == (1, 1, 2, 2)


@pytest.mark.parametrize("engine", ["CAFFE", "CUDNN"])
def test_engines_change_nothing(engine: str) -> None:
    text = 'type: "Convolution" top: "y" convolution_param { num_output: 2 kernel_size: 3 %s }'
    filler = 'weight_filler { type: "xavier" }'
    given = {"x": random.standard_normal((2, 3, 6, 6))}
    settings = filler, f"{filler} engine: {engine} force_nd_im2col: true"
    found = [one_layer(text % each, given).read("y") for each in settings]
    assert found[0].any()
    np.testing.assert_array_equal(*found)


def test_the_command_line_says_where_training_runs() -> None:
    plain = solver("")
    other = solver("solver_mode: GPU device_id: 7 layer_wise_reduce: false")
    for run in (plain, other):
        run.step(2)
    np.testing.assert_equal(parameters(other), parameters(plain))


class Notes(Observer):
    """The iterations of tests."""

    def __init__(self) -> None:
        self.iterations: list[int] = []

    def on_test(self, event: TestResult) -> None:
        self.iterations.append(event.iteration)


@pytest.mark.parametrize(("first", "expected"), [("true", [0, 2, 4]), ("false", [2, 4])])
def test_the_first_test_can_be_left_out(first: str, expected: list[int]) -> None:
    notes = Notes()
    settings = f"test_iter: 1 test_interval: 2 max_iter: 4 test_initialization: {first}"
    solver(settings, observers=[notes]).solve()
    assert notes.iterations == expected


@pytest.mark.parametrize("kind", ["L1", "L2"])
def test_regularization_pulls_towards_zero(kind: str) -> None:
    free, held = solver(""), solver(f'weight_decay: 0.1 regularization_type: "{kind}"')
    before = parameters(free)["ip:0"].astype(float)
    for run in (free, held):
        run.step(1)
    pull = parameters(free)["ip:0"] - parameters(held)["ip:0"].astype(float)
    expected = np.sign(before) if kind == "L1" else before
    rate = free.param.base_lr
    np.testing.assert_allclose(pull, rate * 0.1 * expected, rtol=1e-3, atol=1e-6)


def test_scoring_takes_one_gpu() -> None:
    with pytest.raises(UserError, match="--gpu 0,1: give the number of one GPU"):
        make_backend(Device(gpu="0,1"))
