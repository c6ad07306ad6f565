"""The counts of operations and bytes: by hand for small calls, and the same whatever is fused."""

from __future__ import annotations

import pytest

from osucaffe.backends.primitives import Program
from osucaffe.backends.tensor import Tensor
from osucaffe.graph.flops import bytes_moved, flops
from tests.layers.nets import build

X = (2, 4, 5, 5)
COUNT = 200
WINDOWS = {"stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), "group": 2}


def count(name: str, *tensors: Tensor | list[Tensor] | None, **settings) -> int:
    program = Program()
    getattr(program, name)(*tensors, **settings)
    return flops(program.calls[0])


@pytest.mark.parametrize(
    ("bias", "relu", "expected"), [(False, None, 0), (True, None, 1), (True, 0.0, 2)]
)
def test_convolution(bias: bool, relu: float | None, expected: int) -> None:
    outputs = 2 * 6 * 3 * 3
    b = Tensor((6,)) if bias else None
    tensors = Tensor(X), Tensor((6, 2, 3, 3)), b, Tensor((2, 6, 3, 3))
    found = count("convolution", *tensors, relu=relu, **WINDOWS)
    assert found == outputs * (2 * 2 * 3 * 3 + expected)


def test_inner_product_and_its_gradients() -> None:
    x, w, y = Tensor((2, 3, 4)), Tensor((5, 12)), Tensor((2, 5))
    settings = {"axis": 1, "transpose": False}
    product = 2 * 2 * 12 * 5
    assert count("inner_product", x, w, Tensor((5,)), y, **settings) == product + 10
    assert count("inner_product_backward_data", y, w, x, **settings) == product
    assert count("inner_product_backward_filter", x, y, w, None, **settings) == product


def test_batch_norm() -> None:
    x, y, c = Tensor(X), Tensor(X), Tensor((4,))
    past = (Tensor((4,)), Tensor((4,)), Tensor((1,)))
    assert count("batch_norm_statistics", x, c, c, *past, eps=0.1, momentum=0.9) == 3 * COUNT
    assert count("batch_norm", x, c, c, None, None, None, y) == 2 * COUNT
    assert count("batch_norm", x, c, c, c, c, x, y, relu=True) == 6 * COUNT
    assert count("batch_norm", x, None, None, c, c, None, y) == 2 * COUNT


@pytest.mark.parametrize(
    ("statistics", "scale", "constant", "dx", "gradients", "expected"),
    [
        (True, False, False, True, False, 1 + 4 + 3 + 1),
        (True, False, True, True, False, 1),
        (True, True, False, True, True, 1 + 4 + 3 + 2),
        (True, True, False, False, True, 1 + 4),
        (False, True, True, True, True, 1 + 2 + 1),
        (False, True, True, True, False, 1),
    ],
)
def test_batch_norm_backward(statistics, scale, constant, dx, gradients, expected) -> None:
    x, dy, c = Tensor(X), Tensor(X), Tensor((4,))
    mean = inv_std = c if statistics else None
    dc = c if gradients else None
    found = count(
        "batch_norm_backward", x, [dy], mean, inv_std, c if scale else None, None, None, None,
        x if dx else None, dc, dc, constant=constant,
    )  # fmt: skip
    assert found == expected * COUNT


def test_recurrent_nets_multiply_each_state_by_the_weights() -> None:
    steps, items, size = 3, 2, 4
    gates, h, keep = (steps, items, 4 * size), (steps, items, size), (steps, items)
    found = count(
        "recurrent", Tensor(gates), Tensor(keep), Tensor((4 * size, size)), None, None,
        Tensor(gates), Tensor(h), Tensor(h), Tensor(h), formula="",
    )  # fmt: skip
    assert found == 2 * steps * items * 4 * size * size


def size(tensor: Tensor) -> int:
    return 4 * tensor.size


def test_bytes_of_parts() -> None:
    """Of a tensor that is cut, or some of whose pixels are left out, what is read; of views of one
    memory, all that they show, once."""
    x, wide, y = Tensor(X), Tensor((2, 7, 5, 5)), Tensor((2, 6, 5, 5))
    small, c = Tensor((2, 4, 3, 3)), Tensor((4,))
    program = Program()
    program.concat([x, wide], y, axis=1)
    program.batch_norm(x, c, c, None, None, None, small)
    concat, norm = program.calls
    concat.slices = [None, (3, 2)]
    assert bytes_moved([concat], size) == 4 * (COUNT + 100 + 300)
    norm.subsample = (2, 2)
    assert bytes_moved([norm], size) == 4 * (72 + 4 + 72)
    program = Program()
    for start in (0, 50, 50):
        program.relu(x.view((50,), start), x.view((50,), start), slope=0.0)
    assert bytes_moved(program.calls, size) == 4 * 100
    program.relu(x, y.view(X), slope=0.0)
    assert bytes_moved(program.calls, size) == 4 * 2 * COUNT


BLOCK = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 6 dim: 5 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "c"
        convolution_param { num_output: 3 kernel_size: 1 } }
layer { name: "relu0" type: "ReLU" bottom: "c" top: "c" }
layer { name: "bn" type: "BatchNorm" bottom: "c" top: "n" }
layer { name: "scale" type: "Scale" bottom: "n" top: "n" scale_param { bias_term: true } }
layer { name: "sum" type: "Eltwise" bottom: "n" bottom: "x" top: "s" }
layer { name: "relu" type: "ReLU" bottom: "s" top: "s" }
layer { name: "loss" type: "Reduction" bottom: "s" top: "loss" loss_weight: 1 }
"""


def test_fusion_changes_no_count_of_forward() -> None:
    fused, plain = (build(BLOCK, phase="TRAIN", inspectable=each) for each in (False, True))
    calls = [[call.name for call in net.programs[0]] for net in (fused, plain)]
    assert "relu" in calls[1]
    assert "relu" not in calls[0], "nothing was fused"
    totals = [sum(map(flops, net.programs[0])) for net in (fused, plain)]
    assert totals[0] == totals[1] > 0
