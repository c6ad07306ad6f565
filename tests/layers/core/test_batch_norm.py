"""NVIDIA Caffe's form of BatchNorm, against its formulas in NumPy, and files of its versions."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.proto import array_to_blob, caffe_pb2, read_weights

from ..nets import build, inputs, layer

random = np.random.default_rng(11)
X = random.standard_normal((4, 3, 2, 5)).astype(np.float32) * 2 + 1
MEAN, VARIANCE = np.array([0.5, -1, 2]), np.array([4.0, 1, 0.25])
SCALE, BIAS = np.array([2.0, 3, -1]), np.array([7.0, 8, 9])
FILLER = '{ type: "constant" value: %g }'


def net(settings: str, phase: str, more: str = "", **options):
    text = f'layer {{ name: "op" type: "BatchNorm" bottom: "x" top: "y" {more} '
    text += f"batch_norm_param {{ {settings} }} }}"
    return build(inputs({"x": X.shape}) + text, phase=phase, **options)


def values(built):
    return [built.backend.read(blob.data) for blob in layer(built, "op").parameters]


def output(built, x=X):
    built.write("x", x)
    built.forward()
    return built.read("y")


def normalized(x, mean, variance, eps=1e-5, scale=SCALE, bias=BIAS):
    across = (1, -1, 1, 1)
    y = (x - mean.reshape(across)) / np.sqrt(variance.reshape(across) + eps)
    return y * scale.reshape(across) + bias.reshape(across)


def of_batch(x):
    return x.mean((0, 2, 3)), x.var((0, 2, 3))


@pytest.mark.parametrize(
    ("settings", "scale", "bias"),
    [
        (f"scale_filler {FILLER % 5} bias_filler {FILLER % 7}", 5, 7),
        (f"scale_filler {FILLER % 5}", 5, 0),
        (f"bias_filler {FILLER % 7}", 1, 7),
        (f"scale_bias: false bias_filler {FILLER % 7}", 1, 7),
        ("scale_filler {}", 0, 0),  # a filler's own default
        ("scale_bias: true", 1, 0),
    ],
)
def test_a_filler_is_enough_for_scale_and_bias(settings, scale, bias) -> None:
    built = net(settings, "TRAIN")
    expected = normalized(X, *of_batch(X), scale=np.full(3, scale), bias=np.full(3, bias))
    np.testing.assert_allclose(output(built), expected, atol=1e-4)
    assert len(values(built)) == 5


@pytest.mark.parametrize("gpu", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_moving_averages_begin_with_the_first_batch(gpu) -> None:
    if gpu:
        from osucaffe.backends.cuda import Cuda
    backend = Cuda() if gpu else Cpu()
    train = net("scale_bias: true moving_average_fraction: 0.9", "TRAIN", backend=backend)
    test = net("scale_bias: true", "TEST", share=train, backend=backend)
    means, variances = np.zeros(3), np.zeros(3)
    for turn in range(3):
        x = X + turn
        output(train, x)
        mean, unbiased = x.mean((0, 2, 3)), x.var((0, 2, 3), ddof=1)
        keep = 0.9 if turn else 0.0
        means = keep * means + (1 - keep) * mean
        variances = keep * variances + (1 - keep) * unbiased
    found = values(train)
    np.testing.assert_allclose(found[0], means, rtol=1e-5)
    np.testing.assert_allclose(found[1], variances, rtol=1e-5)
    assert found[2] == 1
    expected = normalized(X, means, variances, scale=np.ones(3), bias=np.zeros(3))
    np.testing.assert_allclose(output(test), expected, atol=1e-4)


def test_the_phase_alone_says_whether_the_past_counts() -> None:
    train = net(f"use_global_stats: true scale_filler {FILLER % 1}", "TRAIN")
    expected = normalized(X, *of_batch(X), scale=np.ones(3), bias=np.zeros(3))
    np.testing.assert_allclose(output(train), expected, atol=1e-4)
    test = net("use_global_stats: false scale_bias: true", "TEST", share=train)
    past = values(train)
    expected = normalized(X, past[0], past[1], scale=np.ones(3), bias=np.zeros(3))
    np.testing.assert_allclose(output(test), expected, atol=1e-4)


def test_statistics_are_left_alone_whatever_their_multipliers() -> None:
    more = "param { lr_mult: 1 decay_mult: 2 } " * 2
    op = layer(net(f"bias_filler {FILLER % 7}", "TRAIN", more), "op")
    multipliers = [(op.spec(i).lr_mult, op.spec(i).decay_mult) for i in range(5)]
    assert multipliers == [(0, 0)] * 3 + [(1, 1)] * 2
    assert op.need_gradients == [False] * 3 + [True] * 2


def test_eps_is_at_least_cudnns() -> None:
    x = X * 1e-3
    expected = normalized(x, *of_batch(x), eps=1e-5, scale=np.ones(3), bias=np.zeros(3))
    found = output(net("scale_bias: true eps: 1e-8", "TRAIN", backend=Cpu(dtype="float64")), x)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    plain = output(net("eps: 1e-8", "TRAIN", backend=Cpu(dtype="float64")), x)
    assert abs(plain).max() > 1.1 * abs(found).max()


def weights(tmp_path, *blobs):
    file = caffe_pb2.NetParameter()
    file.layer.add(name="op", type="BatchNorm").blobs.extend(
        array_to_blob(np.asarray(blob, np.float32)) for blob in blobs
    )
    (tmp_path / "w.caffemodel").write_bytes(file.SerializeToString())
    return read_weights(tmp_path / "w.caffemodel")


def four(blob):
    return np.reshape(blob, (1, -1, 1, 1))


@pytest.mark.parametrize(
    ("blobs", "told"),
    [
        ([MEAN, VARIANCE, [0], SCALE, BIAS], False),  # NVIDIA Caffe 0.16
        ([MEAN, VARIANCE, [1], SCALE, BIAS], False),  # 0.17
        ([SCALE, BIAS, MEAN, VARIANCE, [0]], False),  # 0.15, DIGITS
        ([four(SCALE), four(BIAS), four(MEAN), four(VARIANCE), four([0])], False),
        ([four(SCALE), four(BIAS), four([0]), four(MEAN), four(VARIANCE)], False),  # 0.14
        ([MEAN, VARIANCE, [999], SCALE, BIAS], True),
    ],
)
def test_model_files_of_nvidia(blobs, told, tmp_path, caplog) -> None:
    built = net(f"scale_filler {FILLER % 1}", "TEST")
    with caplog.at_level(logging.WARNING, "osucaffe"):
        built.load(weights(tmp_path, *blobs))
    np.testing.assert_allclose(output(built), normalized(X, MEAN, VARIANCE), atol=1e-4)
    assert told == ('"op" (BatchNorm): blob 2 of the model file, 999, is not read' in caplog.text)


def test_files_go_back_as_they_came(tmp_path) -> None:
    """To be read by NVIDIA Caffe: mean and variance, not sums; the next batch is averaged in."""
    blobs = [MEAN, VARIANCE, [1], SCALE, BIAS]
    built = net("scale_bias: true moving_average_fraction: 0.75", "TRAIN")
    built.load(weights(tmp_path, *blobs))
    for found, expected in zip(values(built), blobs, strict=True):
        np.testing.assert_array_equal(found, np.asarray(expected, np.float32))
    output(built)
    np.testing.assert_allclose(values(built)[0], 0.75 * MEAN + 0.25 * X.mean((0, 2, 3)), rtol=1e-5)


@pytest.mark.parametrize(("weight", "share"), [(0, 1), (1, 1), (4, 0.25)])
def test_three_blobs_are_sums_unless_their_weight_is_0(weight, share, tmp_path) -> None:
    built = net("", "TEST")
    built.load(weights(tmp_path, MEAN, VARIANCE, [weight]))
    expected = normalized(X, MEAN * share, VARIANCE * share, scale=np.ones(3), bias=np.zeros(3))
    np.testing.assert_allclose(output(built), expected, atol=1e-4)
