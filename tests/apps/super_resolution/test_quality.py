"""PSNR and SSIM against other ways to compute them, and enlarging against Pillow."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from osucaffe.apps.super_resolution.quality import luma, psnr, ssim
from osucaffe.data.pictures.bicubic import enlarge, shrink


def noisy(shape=(3, 40, 56), *, seed=0, noise=12):
    """An image with edges and slopes, and another that is like it."""
    draw = np.random.default_rng(seed)
    rows, columns = np.mgrid[: shape[1], : shape[2]]
    base = 90 + 60 * np.sin(rows / 5) + 40 * (columns > shape[2] // 2)
    image = base + draw.normal(0, 8, shape)
    other = image + draw.normal(0, noise, shape)
    return tuple(each.clip(0, 255).astype(np.uint8) for each in (image, other))


def test_luma_is_that_of_rgb2ycbcr():
    # MATLAB's documentation and BT.601: white 235, black 16, and the primaries.
    colours = [(255, 255, 255), (0, 0, 0), (0, 0, 255), (0, 255, 0), (255, 0, 0)]  # blue first
    image = np.array(colours, np.uint8).T[:, None]
    np.testing.assert_allclose(luma(image)[0], [235, 16, 81.481, 144.553, 40.966], atol=1e-9)


def test_psnr_by_hand_and_the_border_that_does_not_count():
    original, other = noisy()
    y = [
        16 + (65.481 * each[2] + 128.553 * each[1] + 24.966 * each[0]) / 255
        for each in (original.astype(float), other.astype(float))
    ]
    error = np.square(y[0] - y[1])[2:-2, 2:-2].mean()
    assert psnr(other, original, 2) == pytest.approx(20 * np.log10(255 / np.sqrt(error)), abs=1e-9)
    other = original.copy()
    other[:, :3] = 0
    assert psnr(other, original, 3) == np.inf
    assert ssim(other, original, 3) == pytest.approx(1)
    assert psnr(other, original, 2) < 40


def plain_ssim(x, y):
    """Equation 13 window by window, with the two-dimensional Gaussian as it is defined."""
    rows, columns = np.mgrid[-5:6, -5:6]
    window = np.exp(-(rows**2 + columns**2) / 4.5)
    window /= window.sum()
    found = []
    for row in range(x.shape[0] - 10):
        for column in range(x.shape[1] - 10):
            a, b = (each[row : row + 11, column : column + 11] for each in (x, y))
            ma, mb = (window * a).sum(), (window * b).sum()
            va, vb = (window * (a - ma) ** 2).sum(), (window * (b - mb) ** 2).sum()
            cov = (window * (a - ma) * (b - mb)).sum()
            found.append(
                (2 * ma * mb + 6.5025)
                * (2 * cov + 58.5225)
                / ((ma**2 + mb**2 + 6.5025) * (va + vb + 58.5225))
            )
    return np.mean(found)


def test_ssim_window_by_window():
    original, other = noisy()
    expected = plain_ssim(luma(other)[2:-2, 2:-2], luma(original)[2:-2, 2:-2])
    assert ssim(other, original, 2) == pytest.approx(expected, abs=1e-9)
    assert 0.3 < expected < 0.95
    with pytest.raises(ValueError, match="too small"):
        ssim(*noisy((3, 14, 40)), 2)


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_enlarging_is_pillows_bicubic_but_at_the_edges(scale):
    image = np.random.default_rng(1).uniform(0, 255, (20, 30)).astype(np.float32)
    size = (30 * scale, 20 * scale)
    expected = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))
    inner = slice(2 * scale, -2 * scale)
    made = enlarge(image, scale)
    assert made.shape == expected.shape
    np.testing.assert_allclose(made[inner, inner], expected[inner, inner], atol=1e-3)


def test_enlarged_edges_go_on_as_mirror_images():
    image = np.random.default_rng(2).uniform(0, 255, (8, 9)).astype(np.float32)
    larger = enlarge(np.pad(image, 4, mode="symmetric"), 2)
    np.testing.assert_allclose(enlarge(image, 2), larger[8:-8, 8:-8], atol=1e-3)


def test_bytes_are_rounded_and_clipped():
    image = np.zeros((3, 6, 6), np.uint8)
    image[:, :, 3:] = 255
    made = enlarge(image, 2)
    assert made.dtype == np.uint8
    assert made.shape == (3, 12, 12)
    values = enlarge(image.astype(np.float32), 2)
    np.testing.assert_array_equal(made, np.floor(values.clip(0, 255) + 0.5))
    assert values.min() < 0 < 255 < values.max()
    np.testing.assert_array_equal(enlarge(np.full((5, 5), 77, np.uint8), 3), 77)
    assert shrink(made, 2).shape == image.shape
