"""Layers that overwrite what gradients need are told, and only these."""

from __future__ import annotations

import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.primitives import Program
from osucaffe.backends.tensor import Tensor
from tests.layers.nets import build

DATA = """
layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 4 } }
"""
LOSS = 'layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 }'


def in_place(*types: str) -> str:
    """Layers of these types, or of a type and its settings: `Power power_param { ... }`."""
    layers = []
    for words in types:
        name, _, settings = words.partition(" ")
        layers.append(f'layer {{ name: "{name}" type: "{name}" bottom: "y" top: "y" {settings} }}')
    return "".join(layers)


@pytest.mark.parametrize(
    ("types", "told"),
    [
        (["ReLU", "Dropout"], []),
        (["ReLU", "Dropout dropout_param { scale_train: false }"], []),
        (["BatchNorm", "Scale", "ReLU"], []),
        (["Sigmoid", "Scale"], [("Scale", "Sigmoid")]),
        (["ReLU", "ReLU relu_param { negative_slope: 0.1 }"], []),
        (["ReLU", "ReLU relu_param { negative_slope: -1 }"], [("ReLU", "ReLU")]),
        (["Power power_param { scale: 2 }", "Scale"], []),
        (["Power power_param { power: 0 }", "Scale"], []),
        (["ReLU", "Scale", "Dropout"], [("Scale", "ReLU"), ("Dropout", "ReLU")]),
    ],
)
def test_what_is_told(types: list[str], told: list[tuple[str, str]], caplog) -> None:
    net = build(DATA + in_place(*types) + LOSS, Cpu(threads=1), phase="TRAIN")
    net.reshape({"x": (1, 3)})  # and told once
    warnings = [record.args for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == told


def test_a_call_keeps_what_a_list_held() -> None:
    x, y, z = (Tensor((2,), name=name) for name in "xyz")
    program, inputs = Program(), [x]
    program.elementwise(inputs, [y], formula="y = a")
    inputs.append(z)
    assert list(program.calls[0].read_tensors()) == [x]
