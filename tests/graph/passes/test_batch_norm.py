"""The fusion of batch normalization: a residual net becomes few calls, and learns the same."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.graph.passes.batch_norm import sum_outputs
from osucaffe.net import Net
from tests.layers.nets import build

SHAPES = "shape { dim: 4 dim: 3 dim: 7 dim: 6 }"
NOISE = '{ type: "gaussian" std: 0.7 }'


def layer(name: str, kind: str, bottoms: str, top: str, settings: str = "") -> str:
    ends = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    tops = " ".join(f'top: "{each}"' for each in top.split())
    return f'layer {{ name: "{name}" type: "{kind}" {ends} {tops} {settings} }}\n'


def branch(name: str, bottom: str, *, relu: bool, place: str = "", settings: str = "") -> str:
    """A convolution, its normalization and scale: in place, or (place) each with its own top."""
    a, b = (name + place, name + 2 * place)
    weights = "convolution_param { num_output: 8 kernel_size: 1 bias_term: false "
    weights += f"weight_filler {NOISE} }}"
    affine = f"scale_param {{ bias_term: true filler {NOISE} bias_filler {NOISE} }}"
    text = layer(f"conv_{name}", "Convolution", bottom, name, weights)
    text += layer(f"bn_{name}", "BatchNorm", name, a, settings)
    text += layer(f"scale_{name}", "Scale", a, b, affine)
    return text + (layer(f"relu_{name}", "ReLU", b, b) if relu else "")


def residual_net(place: str, settings: str = "") -> str:
    ending, options = place + place, {"place": place, "settings": settings}
    return (
        f'layer {{ name: "x" type: "Input" top: "x" input_param {{ {SHAPES} }} }}\n'
        + branch("stem", "x", relu=True, **options)
        + branch("side", "stem" + ending, relu=False, **options)
        + branch("main", "stem" + ending, relu=False, **options)
        + layer("sum1", "Eltwise", f"side{ending} main{ending}", "sum1")
        + layer("relu1", "ReLU", "sum1", "sum1")
        + branch("next", "sum1", relu=False, **options)
        + layer("sum2", "Eltwise", f"sum1 next{ending}", "sum2")
        + layer("relu2", "ReLU", "sum2", "sum2")
        + layer(
            "loss", "Reduction", "sum2", "loss", "reduction_param { operation: SUMSQ }"
        ).replace("}\n", " loss_weight: 1 }\n")
    )


def run(text: str, **options) -> tuple[Net, float, list[dict[str, np.ndarray]]]:
    """The net, its loss, and gradients and values of its parameters after two sub-iterations."""
    net = build(text, Cpu(onednn=False), phase="TRAIN", accumulate=True, **options)
    net.write("x", np.random.default_rng(2).standard_normal((4, 3, 7, 6)))
    for accumulate in False, True:
        net.forward()
        net.backward(accumulate=accumulate)
    values = [
        {each.name: net.backend.read(getattr(each.blob, side)) for each in net.parameters}
        for side in ("diff", "data")
    ]
    return net, net.loss(), values


@pytest.mark.parametrize("settings", ["", "batch_norm_param { use_global_stats: true eps: 2 }"])
@pytest.mark.parametrize("place", ["", "_"], ids=["in place", "apart"])
def test_a_fused_residual_net_learns_the_same(place: str, settings: str) -> None:
    text = residual_net(place, settings)
    _, loss, wanted = run(text, inspectable=True)
    _, found_loss, found = run(text)
    assert found_loss == pytest.approx(loss, rel=1e-5)
    for expected, got in zip(wanted, found, strict=True):
        for name, values in expected.items():
            scale = np.abs(values).max() + 1e-6
            np.testing.assert_allclose(got[name], values, rtol=0, atol=2e-5 * scale, err_msg=name)


@pytest.mark.parametrize("place", ["", "_"], ids=["in place", "apart"])
def test_what_stands_around_a_normalization_joins_it(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    net, _, _ = run(residual_net(place))
    assert "overwrites" not in caplog.text
    forward, backward = (Counter(call.name for call in calls) for calls in net.programs)
    assert forward["batch_norm"] == forward["batch_norm_statistics"] == 4
    assert not {"copy", "relu", "sum"} & set(forward)
    assert backward["batch_norm_backward"] == 4
    # The gradient of the stem has its two parts added with the normalization's too.
    assert not {"copy", "relu_backward", "sum"} & set(backward)
    residual = [call for call in net.programs[0] if getattr(call, "addend", None) is not None]
    assert [call.relu for call in residual] == [True, True]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bottoms", ["a b__", "b__ a"])
@pytest.mark.parametrize("place", [0, None], ids=["in place", "apart"])
def test_beside_a_branch_that_does_not_learn(place: int | None, bottoms: str, relu: bool) -> None:
    frozen = branch("b", "x", relu=False, place="_")
    for settings, count in ("convolution_param", 1), ("scale_param", 2):
        frozen = frozen.replace(settings, count * "param { lr_mult: 0 } " + settings)
    y = "y" if place is None else bottoms.split()[place]
    text = (
        f'layer {{ name: "x" type: "Input" top: "x" input_param {{ {SHAPES} }} }}\n'
        + branch("a", "x", relu=False)
        + frozen
        + layer("sum", "Eltwise", bottoms, y)
        + (layer("relu", "ReLU", y, y) if relu else "")
        + layer("loss", "Reduction", y, "loss", "loss_weight: 1")
    )
    _, _, (wanted, _) = run(text, inspectable=True)
    net, _, (found, _) = run(text)
    assert any(getattr(call, "addend", None) is not None for call in net.programs[0])
    scale = max(np.abs(values).max() for values in wanted.values())
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=2e-5 * scale, err_msg=name)


def test_nothing_joins_where_what_lies_between_is_wanted() -> None:
    text = residual_net("_") + layer("look", "Power", "stem_", "look")
    net, _, _ = run(text)
    separate = [call for call in net.programs[0] if call.name == "batch_norm"]
    assert len(separate) == 5  # the stem's normalization and its scale stay apart


def test_a_convolution_sums_for_the_normalization_behind_it() -> None:
    """But for one whose output is viewed, which has to lie in the order of its shape."""
    net = build(residual_net("_"), Cpu(onednn=False), phase="TRAIN")
    calls = net.programs[0]
    statistics = [call for call in calls if call.name == "batch_norm_statistics"]
    outputs = [call.x for call in statistics]
    for y in outputs:
        y.flexible = True
    outputs[1].view((outputs[1].count,))
    sum_outputs(net.programs)
    makers = {call.y: call for call in calls if call.name == "convolution"}
    summed = [makers[y].sums for y in outputs]
    assert summed == [call.sums for call in statistics]
    assert [each is None for each in summed] == [False, True, False, False]
    assert all(each is None or each.shape == (8,) for each in summed)
