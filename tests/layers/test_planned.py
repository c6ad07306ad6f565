"""Every layer in a net whose tensors share memory and lie as the backend likes, against a net
whose blobs keep memory of their own; and the sum of gradients over sub-iterations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu

from .nets import build, error, inputs
from .test_gradients import CASES, LABELS, NOISE, case, drawn


def surrounded(shapes, text, labels) -> str:
    """The layer between learned inputs and a loss of each of its outputs."""
    text = text.replace('bottom: "', 'bottom: "_').replace('top: "x"', 'top: "_x"')
    for label in labels:
        text = text.replace(f'bottom: "_{label}"', f'bottom: "{label}"')
    before = "".join(
        f'layer {{ name: "learned_{name}" type: "Scale" bottom: "{name}" top: "_{name}" '
        f"scale_param {{ axis: 0 num_axes: -1 }} }}\n"
        for name in shapes
        if name not in labels
    )
    tops = [part.split('"')[1] for part in text.split(" top: ")[1:]]
    after = "".join(
        f'layer {{ name: "loss_{top}" type: "Reduction" bottom: "{top}" top: "loss_{top}" '
        "reduction_param { operation: SUMSQ } loss_weight: 1 }\n"
        for top in tops
        if "Loss" not in text and 'type: "Reduction"' not in text
    )
    text = text.replace('type: "Reduction"', 'type: "Reduction" loss_weight: 1')
    return inputs(shapes) + before + text + after


LEARNS_OTHERWISE = [
    case("CenterLoss", f"center_loss_param {{ num_output: 4 center_{NOISE} }}",
         {"x": (6, 5), "l": (6,)}, labels=LABELS),
    case("MarginInnerProduct", "margin_inner_product_param { num_output: 4 type: QUADRUPLE base: 5 "
         f"gamma: 0 power: 1 weight_{NOISE} }}", {"x": (6, 5), "l": (6,)}, labels=LABELS),
]  # fmt: skip
"""Layers whose gradients are no slopes."""


@pytest.mark.parametrize(("type_", "shapes", "text", "options"), CASES + LEARNS_OTHERWISE)
@pytest.mark.parametrize("onednn", [False, True], ids=["numpy", "onednn"])
def test_planned_net_learns_the_same(type_, shapes, text, options, onednn) -> None:
    backend = Cpu(onednn=onednn)
    if onednn and backend.onednn is None:
        pytest.skip("oneDNN is not installed")
    text = surrounded(shapes, text, options["labels"])
    found = []
    for inspectable in (True, False):
        net = build(text, backend, phase="TRAIN", inspectable=inspectable, accumulate=True)
        for name, values in drawn(np.random.default_rng(7), shapes, options).items():
            net.write(name, values)
        gradients = []
        net.complete()
        shared = net.pool._memory if inspectable else np.empty(0)  # no pass leaves anything there
        for accumulate in (False, True):
            net.random.step = 3  # the same random numbers each time
            shared[:] = 255  # NaN as a float
            net.forward()
            shared[:] = 255
            net.backward(accumulate=accumulate)
            gradients.append({each.name: backend.read(each.blob.diff) for each in net.parameters})
        found.append((net.loss(), *gradients))
    (loss, once, _), (planned_loss, planned, twice) = found
    assert planned_loss == pytest.approx(loss, rel=1e-5)
    for name, gradient in once.items():
        assert error(planned[name], gradient) < 2e-5, name
        assert error(twice[name], 2 * gradient) < 2e-5, name


@pytest.mark.parametrize("type_", ["Scale", "BatchNorm", "PReLU", "Dropout"])
@pytest.mark.parametrize("gpu", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_maxima_that_a_layer_in_place_overwrites(type_: str, gpu: bool) -> None:
    """What oneDNN notes of maxima lies as they do; their gradients may lie otherwise then."""
    text = inputs({"x": (2, 1, 6, 6)}) + (
        'layer { name: "conv" type: "Convolution" bottom: "x" top: "c" convolution_param { '
        'num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } } }'
        'layer { name: "pool" type: "Pooling" bottom: "c" top: "y" pooling_param { kernel_size: 3 '
        "stride: 1 pad: 1 } }"
        f'layer {{ name: "in_place" type: "{type_}" bottom: "y" top: "y" }}'
        'layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 '
        "reduction_param { operation: ASUM } }"
    )
    backend: Any = Cpu()
    if gpu:
        from osucaffe.backends.cuda import Cuda

        backend = Cuda()
    x = np.random.default_rng(1).standard_normal((2, 1, 6, 6))
    found = []
    for inspectable in (True, False):
        net = build(text, backend, phase="TRAIN", inspectable=inspectable)
        net.write("x", x)
        net.forward()
        net.backward()
        found.append(backend.read(net.parameters[0].blob.diff))
    assert error(found[1], found[0]) < 1e-4


def normalized(onednn: bool, dtype: str, x: np.ndarray, **options: Any) -> tuple[Any, Any]:
    """A net whose convolution has a bias before BatchNorm, as many published ones have, after a
    pass; and its backend."""
    text = inputs({"x": x.shape}) + (
        'layer { name: "conv" type: "Convolution" bottom: "x" top: "c" convolution_param { '
        'num_output: 16 kernel_size: 3 weight_filler { type: "msra" } } }'
        'layer { name: "bn" type: "BatchNorm" bottom: "c" top: "n" }'
        'layer { name: "scale" type: "Scale" bottom: "n" top: "s" scale_param { bias_term: true } }'
        'layer { name: "relu" type: "ReLU" bottom: "s" top: "s" }'
        'layer { name: "ip" type: "InnerProduct" bottom: "s" top: "y" inner_product_param { '
        'num_output: 5 weight_filler { type: "xavier" } } }'
        'layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 '
        "reduction_param { operation: SUMSQ } }"
    )
    backend = Cpu(onednn=onednn, dtype=dtype)
    net = build(text, backend, phase="TRAIN", **options)
    net.write("x", x)
    net.forward()
    net.backward()
    return net, backend


def test_the_gradient_of_a_bias_before_normalization_is_rounding() -> None:
    """BatchNorm takes a bias off again, so its gradient, the sum of a channel's gradients, is zero.
    What single precision makes of it is the rounding of that sum: runs that add in another order
    agree in nothing of it, and in all other gradients."""
    if Cpu().onednn is None:
        pytest.skip("oneDNN is not installed")
    x = np.random.default_rng(3).standard_normal((4, 3, 12, 12))
    exact, double = normalized(False, "float64", x, inspectable=True)
    terms = np.abs(double.read(exact.blobs["c"].diff)).sum((0, 2, 3))
    assert terms.min() > 1
    weights, bias = exact.parameters[:2]
    assert (np.abs(double.read(bias.blob.diff)) < 1e-15 * terms).all()
    wanted = [double.read(each.blob.diff) for each in exact.parameters]
    found = []
    for onednn in (False, True):
        for inspectable in (True, False):
            net, backend = normalized(onednn, "float32", x, inspectable=inspectable)
            found.append([backend.read(each.blob.diff) for each in net.parameters])
    for gradients in found:
        assert (np.abs(gradients[1]) < 1e-7 * terms).all()  # about 2^-24 of what is added
        for parameter, mine, its in zip(exact.parameters, gradients, wanted, strict=True):
            if parameter is not bias:
                assert error(mine, its) < 1e-6, parameter.name
    numpy, _, onednn, _ = (gradients[1] for gradients in found)
    assert error(onednn, numpy) > 0.1
    assert np.abs(wanted[0]).max() > 1e5 * np.abs(onednn).max(), weights.name
