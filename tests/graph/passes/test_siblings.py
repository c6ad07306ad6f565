"""Convolutions that read the same blob run as one call, and nobody sees it but in the time."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.primitives.products import Convolution
from osucaffe.graph.passes import pipeline
from osucaffe.net import Net
from osucaffe.parallel.buckets import find_buckets, lowest_layers
from osucaffe.proto import NetParameter, SolverParameter, parse_text
from osucaffe.solvers import Solver

from ...backends.cuda.simulated import force, simulate, with_libraries

BOUNDS = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 0.1, "fp16": 2e-2}
"""Of what may differ from gradients without the pass, as a share of the largest."""


def convolution(name: str, outputs: int, bottom: str = "stem", more: str = "") -> str:
    more += ' weight_filler { type: "xavier" } bias_filler { type: "gaussian" std: 0.1 }'
    return f"""layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}"
      convolution_param {{ num_output: {outputs} kernel_size: 1 {more} }} }}
    layer {{ name: "{name}_relu" type: "ReLU" bottom: "{name}" top: "{name}" }}"""


POOL = """layer { name: "pool" type: "Pooling" bottom: "stem" top: "pool"
  pooling_param { pool: MAX kernel_size: 3 stride: 1 pad: 1 } }"""


def inception(
    *outputs: int,
    channels: int = 64,
    stem: str = "",
    more: str = "",
    extra: str = POOL,
    last: str = "pool",
) -> str:
    """A net of a stem of so many channels, convolutions of it, one behind each of these but the
    first, and what else reads the stem."""
    text = f"""
    layer {{ name: "data" type: "Input" top: "data" top: "label" input_param {{
      shape {{ dim: 2 dim: 3 dim: 7 dim: 7 }} shape {{ dim: 2 }} }} }}
    {convolution("stem", channels, "data", stem)}"""
    names = [f"reduce{number}" for number in range(len(outputs))]
    tops = names[:1]
    for name, count in zip(names, outputs, strict=True):
        text += convolution(name, count, more=more)
        if name != names[0]:
            text += convolution(f"{name}_3x3", 8, name, "pad: 1 kernel_size: 3").replace(
                "kernel_size: 1 pad", "pad"
            )
            tops.append(f"{name}_3x3")
    tops += [last] if extra else []
    bottoms = " ".join(f'bottom: "{top}"' for top in tops)
    return f"""{text} {extra}
    layer {{ name: "all" type: "Concat" {bottoms} top: "all" }}
    layer {{ name: "mean" type: "Pooling" bottom: "all" top: "mean"
      pooling_param {{ pool: AVE global_pooling: true }} }}
    layer {{ name: "scores" type: "InnerProduct" bottom: "mean" top: "scores"
      inner_product_param {{ num_output: 4 weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" }}
    """


def make(text: str, backend: Any, **options: Any) -> Net:
    options = {"accumulate": True, "seed": 3} | options
    net = Net(parse_text(text, NetParameter), backend=backend, **options)
    fill(net)
    return net


def fill(net: Net) -> None:
    """Give it a batch."""
    images = net.blobs["data"]
    net.backend.write(images.data, np.random.default_rng(4).normal(size=images.shape))
    net.backend.write(net.blobs["label"].data, 1)


def both(text: str, backend: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Net, Net]:
    """A net without the pass, and one with it."""
    with monkeypatch.context() as patch:
        others = tuple(each for each in pipeline.COMPILE if each.name != "join siblings")
        patch.setattr(pipeline, "COMPILE", others)
        plain = make(text, backend)
    return plain, make(text, backend)


def count(net: Net, name: str) -> list[int]:
    """How many calls of a primitive each program has."""
    return [sum(call.name == name for call in calls) for calls in net.programs]


def joined(net: Net) -> list[list[str]]:
    """The layers of which each joint convolution does the work."""
    return [
        [call.layer, *(each.layer for each in call.fused if each.name == "convolution")]
        for call in net.programs[0]
        if isinstance(call, Convolution) and call.w.parts
    ]


def gradients(net: Net, passes: int = 1) -> dict[str, np.ndarray]:
    for number in range(passes):
        net.forward()
        net.backward(accumulate=number > 0)
    return {p.name: net.backend.read(p.blob.diff) for p in net.parameters}


class Cutting(Cpu):
    """Gains where concatenation takes parts."""

    enabled_passes = frozenset(("copy parts once",))


@pytest.mark.parametrize("outputs", [(32, 48, 16), (16, 24, 16), (16, 16, 20)])
@pytest.mark.parametrize(("dtype", "make"), [("float64", Cutting), ("float32", Cpu)])
def test_gradients_are_the_same(
    outputs: tuple[int, ...], dtype: str, make: type[Cpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = inception(*outputs)
    if make is Cutting:  # no ReLU looks at what is cut off
        text = re.sub(r'layer { name: "\w+_relu"[^}]*}', "", text)
    plain, net = both(text, make(dtype), monkeypatch)
    cut = [
        sum(getattr(call, "slices", None) is not None for call in calls) for calls in net.programs
    ]
    assert cut == ([1, 1] if make is Cutting else [0, 0])
    assert [sorted(layers) for layers in joined(net)] == [["reduce0", "reduce1", "reduce2"]]
    for name in "", "_backward_data", "_backward_filter":
        before, after = count(plain, f"convolution{name}"), count(net, f"convolution{name}")
        runs = [1, 0] if not name else [0, 1]
        assert [b - a for b, a in zip(before, after, strict=True)] == [2 * each for each in runs]
    assert [p.name for p in net.parameters] == [p.name for p in plain.parameters]
    bound = 1e-12 if dtype == "float64" else 1e-5
    for passes in 1, 2:
        wanted = gradients(plain, passes)
        for name, values in gradients(net, passes).items():
            allowed = bound * np.abs(wanted[name]).max()
            np.testing.assert_allclose(values, wanted[name], rtol=0, atol=allowed, err_msg=name)


def test_filters_are_one_tensor_without_a_copy() -> None:
    backend = Cpu()
    net = make(inception(32, 24, 16), backend)
    [call] = [call for call in net.programs[0] if isinstance(call, Convolution) and call.w.parts]
    for name in "w", "b":
        whole = getattr(call, name)
        assert [part.shape[0] for part in whole.parts] == [32, 16, 24]  # the odd one last
        place = whole.address
        for part in whole.parts:
            assert part.address == place
            place += backend.nbytes(part)
        assert place == whole.address + backend.nbytes(whole)
        values = [np.random.default_rng(1).normal(size=p.shape) for p in whole.parts]
        for part, given in zip(whole.parts, values, strict=True):
            backend.write(part, given)
        np.testing.assert_array_equal(backend.read(whole), np.concatenate(values, dtype=np.float32))
        for part, given in zip(whole.parts, values, strict=True):
            np.testing.assert_array_equal(backend.read(part), np.float32(given))


def test_where_all_readers_join_no_sum_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, net = both(inception(16, 16, extra=""), Cpu("float64"), monkeypatch)
    assert (count(plain, "sum"), count(net, "sum")) == ([0, 1], [0, 0])
    wanted = gradients(plain)
    for name, values in gradients(net).items():
        np.testing.assert_allclose(values, wanted[name], rtol=1e-10, atol=1e-14)


def test_images_without_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    text = inception(16, 16, channels=80).replace(
        'name: "stem" type', 'name: "stem" param { lr_mult: 0 } param { lr_mult: 0 } type'
    )
    plain, net = both(text, Cpu("float64"), monkeypatch)
    assert joined(net) == [["reduce0", "reduce1"]]
    assert not any(count(net, "sum"))
    wanted = gradients(plain)
    for name, values in gradients(net).items():
        if "stem" not in name:
            np.testing.assert_allclose(values, wanted[name], rtol=1e-10, atol=1e-14)


SHARED = (
    "convolution_param { num_output: 16",
    'param { name: "w" } convolution_param { num_output: 16',
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (inception(48, 48), "copies of 96 channels cost more than the 64 that are read once less"),
        (inception(16, 20, channels=32), "copies cost more"),
        (inception(20, 20), "neither can lie before the other without a gap"),
        (inception(16, 16).replace(*SHARED), "they are one parameter"),
        (inception(16, 16).replace('"reduce1_relu" type: "ReLU"', '"r" type: "TanH"'), "a ReLU"),
        (inception(16, 16, more="group: 2"), "groups"),
        (
            inception(16, 16).replace(
                'name: "reduce1" type', 'name: "reduce1" param { lr_mult: 0 } type'
            ),
            "what does not learn lies elsewhere",
        ),
        (
            inception(16, 16).replace(
                'name: "reduce1" type', 'name: "reduce1" propagate_down: false type'
            ),
            "one of them gives no gradient of the images",
        ),
    ],
)
def test_what_stays_apart(text: str, why: str) -> None:
    net = make(text, Cpu("float64"))
    assert joined(net) == [], why
    gradients(net)


def test_only_nets_that_train() -> None:
    text = inception(16, 16)
    assert joined(make(text, Cpu())) == [["reduce0", "reduce1"]]
    assert joined(make(text, Cpu(), inspectable=True)) == []
    assert joined(Net(parse_text(text, NetParameter), backend=Cpu(), inference=True)) == []


def test_a_net_that_shares_the_parameters_reads_them() -> None:
    text = inception(16, 24)
    net = make(text, Cpu())
    for options in {"inference": True}, {"gradients": False, "accumulate": False}, {}:
        other = make(text, net.backend, share=net, **options)
        net.forward()
        other.forward()
        a, b = (each.backend.read(each.blobs["loss"].data) for each in (net, other))
        np.testing.assert_allclose(a, b, rtol=1e-4)


def test_shapes_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, net = both(inception(16, 24), Cpu("float64"), monkeypatch)
    for each in plain, net:
        each.reshape({"data": (3, 3, 5, 5), "label": (3,)})
        fill(each)
    assert joined(net) == [["reduce0", "reduce1"]]
    wanted = gradients(plain)
    for name, values in gradients(net).items():
        np.testing.assert_allclose(values, wanted[name], rtol=1e-10, atol=1e-14)


def test_gradients_are_exchanged_when_all_are_complete() -> None:
    net = make(inception(16, 24, 32), Cpu())
    names = [layer.name for layer in net.layers]
    lowest = {p.name: lowest_layers(net)[id(p.blob)] for p in net.parameters}
    for number in range(3):
        for index in range(2):
            assert lowest[f"reduce{number}/{index}"] == names.index("reduce0")
    assert lowest["reduce1_3x3/0"] == names.index("reduce1_3x3")
    for nbytes in 0, 4096:
        buckets = find_buckets(net, nbytes, frozen=True)
        for start, stop, parameter in net.arena.segments:
            [bucket] = [each for each in buckets if each.start <= start and stop <= each.stop]
            assert bucket.layer <= lowest[parameter.name]
    order = [parameter.name for _, _, parameter in net.arena.segments]
    assert order.index("reduce1_3x3/0") < order.index("reduce0/0")
    assert sorted(order) == sorted(p.name for p in net.parameters)


def test_snapshots_do_not_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run goes on from the snapshot of one without the pass."""
    settings = f"""type: "Adam" base_lr: 0.01 lr_policy: "fixed" random_seed: 7 max_iter: 9
      snapshot_prefix: "{tmp_path}/run" net_param {{ {inception(16, 24)} }}"""

    def solver() -> Solver:
        made = Solver(parse_text(settings, SolverParameter), Cpu("float64"))
        fill(made.net)
        return made

    with monkeypatch.context() as patch:
        others = tuple(each for each in pipeline.COMPILE if each.name != "join siblings")
        patch.setattr(pipeline, "COMPILE", others)
        plain = solver()
    plain.step(2)
    plain.snapshot()
    plain.step(2)
    again = solver()
    assert joined(again.net)
    again.restore(tmp_path / "run_iter_2.solverstate")
    again.step(2)
    for p, q in zip(plain.net.parameters, again.net.parameters, strict=True):
        np.testing.assert_allclose(
            plain.backend.read(p.blob.data), again.backend.read(q.blob.data), rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_kernels_compile(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    force(monkeypatch, "c", 0)
    net = make(inception(16, 24, 32), with_libraries(Cuda(precision=precision, graphs=False)))
    assert joined(net)
    assert count(net, "sum") == [0, 0]  # pooling adds
    net.forward()
    net.backward()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", BOUNDS)
def test_gradients_on_a_gpu(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Cuda(precision=precision)
    plain, net = both(inception(32, 48, 24), backend, monkeypatch)
    assert joined(net)
    for seed in 1, 2:  # 16-bit copies follow what is written to the parts
        draw = np.random.default_rng(seed)
        for p, q in zip(plain.parameters, net.parameters, strict=True):
            values = draw.normal(size=p.blob.shape) / math.sqrt(math.prod(p.blob.shape[1:]) or 1)
            backend.write(p.blob.data, values)
            backend.write(q.blob.data, values)
        for _ in range(3):  # run, captured, replayed
            wanted = gradients(plain)
            found = gradients(net)
        for name, values in found.items():
            allowed = BOUNDS[precision] * np.abs(wanted[name]).max()
            np.testing.assert_allclose(values, wanted[name], rtol=0, atol=allowed, err_msg=name)
