"""Tests of bicubic shrinking: against the formula in double precision, and against Pillow's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from osucaffe.data.pictures.bicubic import shrink

random = np.random.default_rng(0)


def kernel(x: float) -> float:
    """Keys 1981, equation 4 with a = -1/2 (there: 15)."""
    x = abs(x)
    if x <= 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


def slowly(line: np.ndarray, scale: int) -> np.ndarray:
    """A line of whole pixels shrunk, one product at a time; it goes on as its mirror image."""
    n = len(line)
    result = np.zeros(n // scale)
    for i in range(n // scale):
        centre = (i + 0.5) * scale - 0.5
        total = 0.0
        for j in range(math.ceil(centre - 2 * scale), math.floor(centre + 2 * scale) + 1):
            weight = kernel((j - centre) / scale)
            reflected = j % (2 * n)
            result[i] += weight * line[min(reflected, 2 * n - 1 - reflected)]
            total += weight
        result[i] /= total
    return result


@pytest.mark.parametrize(
    ("extents", "scale"), [((16, 24), 2), ((17, 21), 3), ((40, 36), 4), ((4, 7), 2), ((5, 5), 1)]
)
def test_the_formula(extents: tuple[int, int], scale: int) -> None:
    image = random.normal(size=(2, *extents))
    whole = image[:, : extents[0] // scale * scale, : extents[1] // scale * scale]
    rows = np.apply_along_axis(slowly, 1, whole, scale)
    np.testing.assert_allclose(
        shrink(image, scale), np.apply_along_axis(slowly, 2, rows, scale), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_pillow_computes_the_same_away_from_the_edges(scale: int) -> None:
    """Pillow rounds between its two passes, so a level more or less; its edges differ."""
    image_module = pytest.importorskip("PIL.Image")
    image = random.integers(60, 200, (60 * scale, 40 * scale, 3), dtype=np.uint8)
    small = image_module.fromarray(image).resize((40, 60), image_module.Resampling.BICUBIC)
    difference = shrink(image.transpose(2, 0, 1), scale).astype(int)
    difference -= np.asarray(small).transpose(2, 0, 1)
    inner = np.abs(difference[:, 2:-2, 2:-2])
    assert inner.max() <= 1
    assert inner.mean() < 0.2


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_a_box_is_that_part_of_the_whole(scale: int) -> None:
    image = random.integers(0, 256, (3, 20 * scale + 1, 30 * scale), dtype=np.uint8)
    whole = shrink(image, scale)
    assert whole.shape == (3, 20, 30)
    assert whole.dtype == np.uint8
    for top, left, side in [(0, 0, 5), (15, 25, 5), (7, 9, 11), (0, 10, 20)]:
        box = slice(top, top + side), slice(left, left + side)
        np.testing.assert_array_equal(shrink(image, scale, box), whole[:, *box])


def test_what_exceeds_a_byte_is_cut_off() -> None:
    image = np.zeros((1, 16, 16), np.uint8)
    image[..., 8:] = 255  # the kernel's negative parts overshoot beside an edge
    floats = shrink(image.astype(np.float32), 2)
    assert floats.min() < -1
    assert floats.max() > 256
    np.testing.assert_array_equal(shrink(image, 2), np.floor(floats.clip(0, 255) + 0.5))
