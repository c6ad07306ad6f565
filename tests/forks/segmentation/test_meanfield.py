"""The permutohedral lattice beside a slow one and beside Gaussian sums, and what CRF-RNN's layer
makes of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.forks.segmentation.crf import Lattice
from tests.layers.nets import build, inputs
from tests.layers.test_values import run, softmax

random = np.random.default_rng(4)


def vertices_of(feature):
    """The vertices of the simplex around a point, as tuples, and its barycentric coordinates."""
    d = len(feature)
    elevated, total = [0.0] * (d + 1), 0.0
    for j in range(d, 0, -1):
        scaled = feature[j - 1] * math.sqrt(2 / 3) * (d + 1) / math.sqrt(j * (j + 1))
        elevated[j] = total - j * scaled
        total += scaled
    elevated[0] = total
    place = [round(each / (d + 1)) * (d + 1) for each in elevated]
    excess = sum(place) // (d + 1)
    gaps = [a - b for a, b in zip(elevated, place, strict=True)]
    rank = [excess] * (d + 1)
    for i in range(d + 1):
        for j in range(i):
            rank[i if gaps[j] >= gaps[i] else j] += 1
    for i in range(d + 1):
        while not 0 <= rank[i] <= d:
            step = d + 1 if rank[i] < 0 else -d - 1
            rank[i] += step
            place[i] += step
    shares = [0.0] * (d + 2)
    for i in range(d + 1):
        share = (elevated[i] - place[i]) / (d + 1)
        shares[d - rank[i]] += share
        shares[d + 1 - rank[i]] -= share
    shares[0] += 1 + shares[d + 1]
    for k in range(d + 1):
        moved = [k if rank[i] <= d - k else k - d - 1 for i in range(d + 1)]
        yield tuple(a + b for a, b in zip(place, moved, strict=True)), shares[k]


def slow_filter(features, values, reverse=False):
    """Of values (points, k), vertex by vertex."""
    d = features.shape[1]
    around = [list(vertices_of(feature)) for feature in features]
    table: dict = {}
    for corners, value in zip(around, values, strict=True):
        for vertex, share in corners:
            table[vertex] = table.get(vertex, 0) + share * value
    for axis in range(d, -1, -1) if reverse else range(d + 1):
        step = np.full(d + 1, -1)
        step[axis] = d
        table = {
            vertex: value
            + sum(table.get(tuple(np.array(vertex) + way * step), 0 * value) for way in (1, -1)) / 2
            for vertex, value in table.items()
        }
    found = [sum(share * table[vertex] for vertex, share in corners) for corners in around]
    return np.array(found) / (1 + 2.0**-d)


@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_the_lattice_is_the_slow_one(dimensions: int) -> None:
    features = random.standard_normal((40, dimensions)) * 2
    features[7] = features[3]
    values = random.standard_normal((40, 3))
    lattice = Lattice(features)
    for reverse in (False, True):
        found = lattice.filter(values.T, reverse=reverse).T
        wanted = slow_filter(features, values, reverse)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    whole, turned = (lattice.filter(np.eye(40), reverse=each) for each in (False, True))
    np.testing.assert_allclose(whole, turned.T, atol=1e-14)


def features_of(image, theta_place, theta_colour=None):
    """By place, and by colour too: of an image (channels, height, width)."""
    rows, columns = np.indices(image.shape[1:]).reshape(2, -1)
    parts = [columns / theta_place, rows / theta_place]
    if theta_colour:
        parts += [channel.reshape(-1) / theta_colour for channel in image]
    return np.stack(parts, axis=1)


def gaussian(features):
    """The weight of each point for each other one, summing to 1."""
    weights = np.exp(-((features[:, None] - features[None]) ** 2).sum(axis=2) / 2)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("theta_colour", "most", "usual"), [(None, 0.05, 0.01), (10, 0.09, 0.03)])
def test_the_lattice_is_nearly_a_gaussian(theta_colour, most: float, usual: float) -> None:
    """Of values between 0 and 1: Adams et al. (2010) tell of some percent. The nearest other thing,
    the same Gaussian a quarter wider, is farther away than that."""
    image = np.zeros((3, 24, 24))
    image[:, :, 12:] = 100
    image += random.normal(0, 4, image.shape)
    values = ((np.indices((24, 24)) > 10) * 0.8 + 0.2 * random.random((2, 24, 24))).reshape(2, -1)
    features = features_of(image, 3 if theta_colour is None else 8, theta_colour)
    lattice = Lattice(features)
    found = lattice.filter(values) / lattice.filter(np.ones((1, 576)))
    gaps = np.abs(found - values @ gaussian(features).T)
    assert gaps.max() < most
    assert gaps.mean() < usual
    wide = np.abs(values @ gaussian(features / 1.25).T - values @ gaussian(features).T)
    assert gaps.mean() < wide.mean()


def test_single_precision_is_kept() -> None:
    lattice = Lattice(random.standard_normal((500, 3)))
    values = random.random((2, 500))
    found = lattice.filter(values.astype(np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, lattice.filter(values), rtol=1e-5)


SETTINGS = (
    "multi_stage_meanfield_param {{ theta_alpha: 4 theta_beta: 0.5 theta_gamma: 2 "
    "num_iterations: 3 {} }}"
)


def test_iterations_are_those_of_the_paper() -> None:
    shape = (2, 3, 4, 5)
    unary, begin, image = (random.standard_normal(shape) for _ in range(3))
    weights = [random.standard_normal((3, 3)) for _ in range(3)]
    found = run("MultiStageMeanfield", [unary, begin, image], SETTINGS.format(""),
                parameters=[each.reshape(1, 1, 3, 3) for each in weights])  # fmt: skip
    for item in range(2):
        q = begin[item].reshape(3, -1)
        for _ in range(3):
            mixed = 0
            for weight, features in zip(
                weights, (features_of(image[item], 2), features_of(image[item], 4, 0.5)),
                strict=False,
            ):  # fmt: skip
                smooth = slow_filter(features, softmax(q, 0).T) / slow_filter(
                    features, np.ones((20, 1))
                )
                mixed = mixed + weight @ smooth.T
            q = unary[item].reshape(3, -1) - weights[2] @ mixed
        np.testing.assert_allclose(found[item].reshape(3, -1), q, rtol=1e-10)


@pytest.mark.parametrize(
    ("settings", "spatial", "bilateral"),
    [
        ("spatial_filter_weight: 3", [3, 3, 3], [1, 1, 1]),
        ("bilateral_filter_weights_str: '5 2 1.5 7'", [1, 1, 1], [5, 2, 1.5]),
    ],
)
def test_what_parameters_begin_with(settings: str, spatial, bilateral) -> None:
    text = inputs(dict.fromkeys("uqi", (1, 3, 4, 4)))
    text += 'layer { name: "op" type: "MultiStageMeanfield" bottom: "u" bottom: "q" bottom: "i" '
    net = build(f'{text} top: "y" {SETTINGS.format(settings)} }}', Cpu())
    found = [net.backend.read(each.blob.data)[0, 0] for each in net.parameters]
    for matrix, diagonal in zip(found, (spatial, bilateral, [-1, -1, -1]), strict=True):
        np.testing.assert_array_equal(matrix, np.diag(diagonal))


def test_colours_that_no_lattice_can_hold_are_named() -> None:
    values = [np.zeros((1, 2, 3, 3)), np.zeros((1, 2, 3, 3)), np.full((1, 3, 3, 3), np.nan)]
    with pytest.raises(UserError, match="over theta: features are not all finite numbers"):
        run("MultiStageMeanfield", values, SETTINGS.format(""))
    values[2] = random.random((1, 3, 3, 3)) * 1e9
    with pytest.raises(UserError, match="over theta: features are too far apart"):
        run("MultiStageMeanfield", values, SETTINGS.format(""))
