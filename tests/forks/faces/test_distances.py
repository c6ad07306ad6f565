"""Distances to classes and their losses, against loops over items and classes as the fork has
them, and the loss of 68 points of a face, point by point."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu
from tests.layers.nets import build, gradient, layer, one_layer, parameter_gradient, refuse

random = np.random.default_rng(5)


@pytest.mark.parametrize("kind", ["L2", "L1"])
@pytest.mark.parametrize("own_only", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_distances_and_what_learns_from_them(kind: str, own_only: bool, given: bool) -> None:
    x, w = random.standard_normal((4, 5)), random.standard_normal((3, 5))
    label, seeds = np.array([2.0, 0, 2, 1]), random.standard_normal((4, 3))
    wanted, dx, dw = np.zeros((4, 3)), np.zeros_like(x), np.zeros_like(w)
    for m in range(4):
        for n in range(3):
            for k in range(5):
                gap = x[m, k] - w[n, k]
                wanted[m, n] += gap**2 if kind == "L2" else abs(gap)
                slope = seeds[m, n] * (2 * gap if kind == "L2" else np.sign(gap))
                dx[m, k] += slope
                if not own_only or n == label[m]:
                    dw[n, k] -= slope
    text = f"""type: "InnerDistance" top: "y" inner_distance_param {{ num_output: 3
        distance_type: "{kind}" update_center_only: {str(own_only).lower()} }}"""
    bottoms = {"x": x} | ({"w": w} if given else {}) | ({"l": label} if own_only else {})
    net = one_layer(text, bottoms, Cpu(dtype="float64"), parameters=[w], seeds={"y": seeds})
    np.testing.assert_allclose(net.read("y"), wanted)
    np.testing.assert_allclose(gradient(net, "x"), dx)
    np.testing.assert_allclose(gradient(net, "w") if given else parameter_gradient(net), dw)


def test_centers_are_kept_at_length_one() -> None:
    x, w = random.standard_normal((4, 5)), random.standard_normal((3, 5))
    text = 'type: "InnerDistance" top: "y" inner_distance_param { num_output: 3 normalize: true }'
    net = one_layer(text, {"x": x}, Cpu(dtype="float64"), parameters=[w])
    unit = w / np.sqrt((w**2).sum(axis=1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(net.backend.read(layer(net, "op").parameters[0].data), unit)
    np.testing.assert_allclose(net.read("y"), ((x[:, None] - unit) ** 2).sum(axis=2))


@pytest.mark.parametrize(
    ("settings", "shapes", "message"),
    [
        ('distance_type: "L3"', [(4, 5)], 'distance_type: is "L3": give one of L2, L1'),
        ("num_output: 0", [(4, 5)], "num_output: must be at least 1"),
        ("transpose: true", [(4, 5)], "transpose: is not supported"),
        ("", [(4, 5), (3, 6)], r"bottom\[1\]: has shape \(3, 6\), but items of bottom\[0\] 5"),
        ("num_output: 2 update_center_only: true", [(4, 5)], "bottom: must be features"),
        ("num_output: 2 update_center_only: true", [(4, 5), (3,)], "must hold 4 labels"),
    ],
)
def test_bad_input_of_distances_is_named(settings, shapes, message) -> None:
    refuse(f'type: "InnerDistance" top: "y" inner_distance_param {{ {settings} }}', shapes, message)


def contrastive(d, label, s, mean):
    """Loss, means, slopes and the next mean, as the fork's loops find them."""
    num, dim = d.shape
    positive, negative = s.get("positive_weight", 1), s.get("negative_weight", 1)
    margin = s.get("negative_margin", 1) + (mean if s.get("add_intra_mae") else 0)
    start, outlier = s.get("positive_margin", 0), s.get("positive_outlier_thresh", 4)
    part, slopes = np.zeros_like(d), np.zeros_like(d)
    pulled = pushed = total = 0.0
    furthest, hardest = 0, np.zeros(num, int)
    for i in range(num):
        for j in range(dim):
            if j == label[i]:
                part[i, j] = min(outlier, max(0, d[i, j] - start)) * positive
                pulled += part[i, j] / positive
                if part[i, j] < part[furthest, label[furthest]]:
                    furthest = i
            elif d[i, j] < margin:
                size = np.exp(-d[i, j]) if s.get("exp_negative_weight") else margin - d[i, j]
                part[i, j] = size * negative
                pushed += margin - d[i, j]
                if part[i, j] > part[i, hardest[i]]:
                    hardest[i] = j
    for i in range(num):
        far = s.get("positive_first") and d[i, label[i]] > s.get("positive_upper_bound", 1)
        for j in range(dim):
            own = j == label[i]
            skipped = s.get("max_negative_only") and j != hardest[i]
            if own and s.get("max_positive_only") and i != furthest:
                part[i, j] = 0
            if not own and (far or skipped):
                part[i, j] = 0
            if far:
                slopes[i, j] = positive if own else 0
            elif own:
                near = s.get("max_positive_only") and i != furthest
                slopes[i, j] = positive if start < d[i, j] < outlier and not near else 0
            elif d[i, j] < margin and not skipped:
                slopes[i, j] = -negative * (np.exp(-d[i, j]) if s.get("exp_negative_weight") else 1)
                total += -slopes[i, j]
    if "normalize_negative" in s and (excess := total / s["normalize_negative"] / num) > positive:
        slopes[slopes < 0] /= excess
    mean = min(0.99 * mean + 0.01 * pulled / num, s.get("max_negative_margin", 1.2))
    return np.abs(part).sum() / num, [pulled / num, pushed / num / (dim - 1), mean], slopes, mean


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "positive_margin": 0.3,
            "negative_margin": 1.4,
            "positive_weight": 2,
            "negative_weight": 3,
        },
        {"exp_negative_weight": True, "positive_outlier_thresh": 1.2},
        {"max_negative_only": True, "max_positive_only": True},
        {"positive_first": True, "positive_upper_bound": 0.9, "normalize_negative": 0.5},
        {"add_intra_mae": True, "max_negative_margin": 0.005},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_contrastive_loss_is_the_forks(settings: dict) -> None:
    label = np.array([0, 2, 1, 0, 3])
    fields = " ".join(f"{name}: {str(value).lower()}" for name, value in settings.items())
    text = f"""type: "GeneralContrastiveLoss" top: "loss" top: "means" loss_weight: [0.5, 0]
        general_contrastive_loss_param {{ {fields} }}"""
    net, mean = None, 0.0
    for _ in range(2):
        d = random.uniform(0, 2, (5, 4))
        loss, means, slopes, mean = contrastive(d, label, settings, mean)
        if net is None:
            given = {"d": d, "l": label.astype(float)}
            net = one_layer(text, given, Cpu(dtype="float64"), phase="TRAIN", seeds={})
        else:
            net.write("d", d)
            net.forward()
            net.backward()
        assert net.read("loss") == pytest.approx(loss)
        wanted = means if settings.get("add_intra_mae") else means[:2]
        np.testing.assert_allclose(net.read("means"), wanted)
        np.testing.assert_allclose(gradient(net, "d"), 0.5 * slopes / 5, atol=1e-15)


def test_a_label_of_no_class_makes_the_loss_nan() -> None:
    """One that was computed: others are refused."""
    net = build(
        """layer { name: "in" type: "Input" top: "d" top: "l"
            input_param { shape { dim: 3 dim: 4 } shape { dim: 3 } } }
        layer { name: "shift" type: "Power" bottom: "l" top: "m" power_param { shift: 1 } }
        layer { name: "op" type: "GeneralContrastiveLoss" bottom: "d" bottom: "m" top: "loss"
                loss_weight: 1 }""",
        Cpu(),
    )
    for labels, is_nan in ([0, 1, 2], False), ([0, 3, 1], True), ([-2, 0, 1], True):
        net.write("l", np.array(labels, np.float32))
        net.forward()
        assert np.isnan(net.read("loss")) == is_nan


def test_a_third_bottom_has_the_distances_that_count() -> None:
    d, label = random.uniform(0, 2, (5, 4)), np.array([0, 2, 1, 0, 3])
    text = 'type: "GeneralContrastiveLoss" top: "loss"'
    given = {"x": np.zeros((5, 4)), "l": label.astype(float), "d": d}
    net = one_layer(text, given, Cpu(dtype="float64"), phase="TRAIN", seeds={})
    loss, _, slopes, _ = contrastive(d, label, {}, 0.0)
    assert net.read("loss") == pytest.approx(loss)
    np.testing.assert_allclose(gradient(net, "x"), slopes / 5)
    refuse(text, [(5, 4), (4,)], r"bottom\[1\]: \(4,\) is not of the batch")
    refuse(text, [(5, 4), (5, 2)], r"bottom\[1\]: has shape \(5, 2\), but must hold 5 labels")


@pytest.mark.parametrize(
    "normalized", ["", "normalized: true", "normalized: true normalized_type: 1"]
)
@pytest.mark.parametrize("factors", [False, True])
def test_landmarks_are_weighted(normalized: str, factors: bool) -> None:
    x, target, third = (random.uniform(0, 1, (3, 136)) for _ in range(3))
    target[1] += 2
    coarse = [17, 21, 22, 26, 36, 39, 42, 45, 27, 31, 35, 48, 54]
    loss, slopes = 0.0, np.zeros_like(x)
    for n in range(3):
        rate, (px, py) = 1.0, target[n].reshape(2, 68)
        if "type" in normalized:
            high = max(0, px.max()) - min(1, px.min()), max(0, py.max()) - min(1, py.min())
            rate = 1 / np.hypot(*high)
        elif normalized:
            rate = 1 / np.sqrt((px[36] - px[42]) ** 2 + (py[39] - py[45]) ** 2)
        for i in range(136):
            point = i % 68
            weight = 5 if point in coarse else 2 if point <= 16 else 3
            slopes[n, i] = weight * rate * (x[n, i] - target[n, i])
            loss += slopes[n, i] * (x[n, i] - target[n, i]) * (third[n, i] if factors else 1) / 6
    text = f"""type: "WeightEuclideanLoss" top: "loss" loss_weight: 0.5
        weight_euclidean_loss_param {{ main_weight: 3 contour_weight: 2 coarse_weight: 5
        {normalized} }}"""
    given = {"x": x, "t": target} | ({"f": third} if factors else {})
    net = one_layer(text, given, Cpu(dtype="float64"), phase="TRAIN", seeds={})
    assert net.read("loss") == pytest.approx(loss)
    np.testing.assert_allclose(gradient(net, "x"), 0.5 * slopes / 3, rtol=1e-6)
    np.testing.assert_allclose(gradient(net, "t"), -0.5 * slopes / 3, rtol=1e-6)
    refuse(
        text, [(3, 130), (3, 130)], r"bottom\[0\]: has shape \(3, 130\), but must hold 408 numbers"
    )


def test_noise_is_of_the_size_of_its_bottom() -> None:
    x = 4 + random.standard_normal((100, 200))
    for text, deviation, bound in (
        ("gaussian_std: 0.5 bias: 1", 0.5 * np.sqrt((x**2).mean()), np.inf),
        ("uniform_range: 0.25 bias: 1", 0.25 / np.sqrt(3), 0.25),
        ("bias: 1", None, None),
    ):
        op = f'type: "Noise" top: "y" noise_param {{ {text} }}'
        net = one_layer(op, {"x": x}, phase="TRAIN", seeds={"y": x})
        noise = net.read("y") - x.astype(np.float32)
        np.testing.assert_allclose(gradient(net, "x"), x, rtol=1e-6)
        if deviation is None:
            assert not noise.any()
            continue
        assert noise.mean() == pytest.approx(1, abs=0.03)
        assert noise.std() == pytest.approx(deviation, rel=0.03)
        assert np.abs(noise - 1).max() <= bound + 1e-5
        net.write("x", x)
        net.forward()
        again = net.read("y") - x.astype(np.float32)
        assert abs(np.corrcoef(again.ravel(), noise.ravel())[0, 1]) < 0.05, "each pass draws anew"
        np.testing.assert_array_equal(one_layer(op, {"x": x}).read("y"), x.astype(np.float32))
