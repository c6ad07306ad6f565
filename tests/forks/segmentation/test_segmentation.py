"""What the layers of nets that label pixels compute, and how well they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.errors import UserError
from osucaffe.proto import array_to_blob, caffe_pb2
from tests.layers.nets import build, inputs, layer, refuse
from tests.layers.test_fixtures import PRECISIONS
from tests.layers.test_values import run

random = np.random.default_rng(3)


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [
        ("", 4),
        ("param { } param { }", 2),
        ("param { } param { } param { } param { }", 4),
        ("bn_param { bn_mode: INFERENCE }", 2),
        ("bn_param { engine: CUDNN }", 4),
    ],
)
def test_which_bn_it_is(settings: str, parameters: int) -> None:
    net = build(f"""{inputs({"x": (2, 3, 2, 2)})} layer {{ name: "op" type: "BN" bottom: "x"
                top: "y" {settings} }}""", Cpu())  # fmt: skip
    assert len(layer(net, "op").parameters) == parameters
    assert all(blob.shape == (1, 3, 1, 1) for blob in layer(net, "op").parameters)


@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (1, 3), (3,)])
def test_bn_takes_the_shapes_of_all_forks(shape: tuple[int, ...]) -> None:
    net = build(inputs({"x": (2, 3, 2, 2)})
                + 'layer { name: "op" type: "BN" bottom: "x" top: "y" }', Cpu())  # fmt: skip
    weights = caffe_pb2.NetParameter()
    saved = weights.layer.add(name="op", type="BN")
    values = [np.arange(3) + 10 * i for i in range(4)]
    saved.blobs.extend(array_to_blob(each.reshape(shape)) for each in values)
    net.load(weights)
    for blob, each in zip(layer(net, "op").parameters, values, strict=True):
        np.testing.assert_array_equal(net.backend.read(blob.data).ravel(), each)


def test_frozen_bn_learns_nothing() -> None:
    text = """layer { name: "op" type: "BN" bottom: "x" top: "y" param { lr_mult: 1 }
        param { lr_mult: 1 } param { lr_mult: 1 } param { lr_mult: 1 } bn_param { frozen: %s } }"""
    for frozen, learned in (("true", 0), ("false", 2)):
        net = build(inputs({"x": (2, 3, 2, 2)}) + text % frozen, Cpu(), phase="TRAIN")
        assert sum(parameter.lr_mult > 0 for parameter in net.parameters) == learned


@pytest.mark.parametrize(
    "precision", ["cpu", *(pytest.param(each, marks=pytest.mark.gpu) for each in PRECISIONS)]
)
def test_pooling_and_upsample_keep_the_maxima_in_their_places(precision: str) -> None:
    backend: Any = Cpu()
    if precision != "cpu":
        from osucaffe.backends.cuda import Cuda

        backend = Cuda(precision=precision)
    x = random.permutation(2 * 3 * 66 * 80).reshape(2, 3, 66, 80) % 251.0  # all formats hold these
    net = build(inputs({"x": x.shape}) + """
        layer { name: "pool" type: "Pooling" bottom: "x" top: "p" top: "mask"
          pooling_param { kernel_size: 2 stride: 2 } }
        layer { name: "up" type: "Upsample" bottom: "p" bottom: "mask" top: "y"
          upsample_param { scale: 2 } }""", backend)  # fmt: skip
    net.write("x", x)
    net.forward()
    largest = np.kron(net.read("p"), np.ones((2, 2)))
    found = net.read("y")
    np.testing.assert_array_equal(found[found > 0], x[found > 0])
    np.testing.assert_array_equal(np.unique(largest[found > 0]), np.unique(found[found > 0]))
    assert (found > 0).sum() == (net.read("p") > 0).sum()


def test_no_gradient_is_asked_of_a_mask() -> None:
    """Behind layers that learn, as in SegNet: the mask is made by them too."""
    net = build(inputs({"x": (1, 2, 4, 4)}) + """
        layer { name: "conv" type: "Convolution" bottom: "x" top: "c" convolution_param {
          num_output: 3 kernel_size: 3 pad: 1 weight_filler { type: "gaussian" std: 1 } } }
        layer { name: "pool" type: "Pooling" bottom: "c" top: "p" top: "mask"
          pooling_param { kernel_size: 2 stride: 2 } }
        layer { name: "up" type: "Upsample" bottom: "p" bottom: "mask" top: "y" }
        layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 }""",
        Cpu(), phase="TRAIN")  # fmt: skip
    net.write("x", random.standard_normal((1, 2, 4, 4)))
    net.forward()
    net.backward()
    bias = next(each for each in net.parameters if each.index == 1)
    np.testing.assert_array_equal(net.backend.read(bias.blob.diff), [4, 4, 4])  # windows


def test_upsample_with_one_bottom_repeats_elements() -> None:
    x = random.standard_normal((2, 3, 2, 4))
    wanted = x.repeat(3, axis=2).repeat(3, axis=3)
    np.testing.assert_array_equal(run("Upsample", [x], "upsample_param { scale: 3 }"), wanted)
    np.testing.assert_array_equal(run("Upsample", [x]), x)
    text = 'type: "Upsample" top: "y" upsample_param {{ {} }}'
    refuse(text.format("scale: 0"), [(1, 1, 2, 2)], "upsample_param.scale: must be at least 1")
    refuse(text.format("upsample_h: 9"), [(1, 1, 2, 2)], "upsample_h: is for two bottoms")
    refuse(text.format("scale: 2"), [(1, 2)], r"has shape \(1, 2\), but must be N x C x H x W")


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ("height: 3 width: 4", (3, 4)),
        ("zoom_factor: 2", (9, 11)),
        ("zoom_factor: 2 height: 3 width: 4", (9, 11)),
        ("shrink_factor: 2", (3, 3)),
        ("shrink_factor: 2 zoom_factor: 3", (7, 7)),
        ("shrink_factor: 2 zoom_factor: 3 height: 3 width: 4", (3, 4)),
        ("zoom_factor: 2 pad_beg: -1 pad_end: -2", (3, 5)),
    ],
)
def test_interp_sizes(settings: str, shape: tuple[int, int]) -> None:
    x = np.add.outer(10 * np.arange(5.0), np.arange(6.0))[None, None]
    y = run("Interp", [x], f"interp_param {{ {settings} }}")
    assert y.shape == (1, 1, *shape)
    begin, end = (1, 2) if "pad" in settings else (0, 0)
    part = x[0, 0, begin : 5 - end, begin : 6 - end]
    rows = np.linspace(part[0, 0], part[-1, 0], shape[0])  # a plane stays one
    columns = np.linspace(0, part.shape[1] - 1, shape[1])
    np.testing.assert_allclose(y[0, 0], np.add.outer(rows, columns))


def test_class_weights_are_one_for_each_class() -> None:
    text = "loss_param { weight_by_label_freqs: true class_weighting: 1 }"
    with pytest.raises(UserError, match=r"class_weighting: is given 1 times: .* each of 4 classes"):
        run("SoftmaxWithLoss", [np.zeros((2, 4)), np.zeros(2)], text)


def measures(batches, classes, ignored=()):
    matrix = np.zeros((classes, classes))
    for scores, labels in batches:
        for n, _, y, x in np.ndindex(labels.shape):
            label = int(labels[n, 0, y, x])
            if label not in ignored:
                matrix[label, scores[n, :, y, x].argmax()] += 1
    right, there, taken = matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)
    recall = [right[i] / there[i] for i in range(classes) if there[i]]
    unions = there + taken - right
    iou = [1.0 if unions[i] == right[i] else right[i] / unions[i] for i in range(classes)]
    return [right.sum() / there.sum(), np.mean(recall), np.mean(iou)]


@pytest.mark.parametrize("ignored", [(), (255,), (2, 255)])
def test_pixels_classes_and_overlaps(ignored: tuple[int, ...]) -> None:
    scores = random.standard_normal((2, 6, 4, 5))
    scores[:, 4] = scores[:, 5] = -9  # never found; 5 is not there either
    labels = random.integers(0, 5, (2, 1, 4, 5)).astype(float)
    scores[0, 0, :2] += 4
    labels[0, 0, :2] = 0
    if 255 in ignored:
        labels[1, 0, 0] = 255
    text = " ".join(f"ignore_label: {each}" for each in ignored)
    found = run("SegAccuracy", [scores, labels], f"seg_accuracy_param {{ {text} }}")
    assert found.shape == (1, 1, 1, 3)
    np.testing.assert_allclose(found.ravel(), measures([(scores, labels)], 6, ignored))


def test_all_passes_may_count() -> None:
    text = inputs({"x": (1, 3, 2, 4), "l": (1, 1, 2, 4)})
    text += """layer { name: "op" type: "SegAccuracy" bottom: "x" bottom: "l" top: "y"
        seg_accuracy_param { reset: false } }"""
    net, seen = build(text, Cpu()), []
    for _ in range(3):
        seen.append((random.standard_normal((1, 3, 2, 4)), random.integers(0, 3, (1, 1, 2, 4))))
        net.write("x", seen[-1][0])
        net.write("l", seen[-1][1])
        net.forward()
        np.testing.assert_allclose(net.read("y").ravel(), measures(seen, 3), rtol=1e-6)


def test_a_label_that_is_no_class() -> None:
    scores, labels = np.zeros((1, 3, 1, 2)), np.array([[[[0.0, 3]]]])
    two = "seg_accuracy_param { ignore_label: 7 ignore_label: 8 }"
    assert np.isnan(run("SegAccuracy", [scores, labels], two)).all()
    with pytest.raises(UserError, match=r"bottom\[1\]: has shape \(1, 1, 1, 1\)"):
        run("SegAccuracy", [scores, labels[..., :1]])
