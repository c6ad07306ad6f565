"""Colours of images that vary, and parts of them that go beyond."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest

from osucaffe.forks.augment import Window, distort, show
from osucaffe.proto import caffe_pb2


def fixed(**values: float) -> caffe_pb2.DistortionParameter:
    """A distortion that is always the same: both ends of what is drawn are equal."""
    return caffe_pb2.DistortionParameter(**values)


@pytest.mark.parametrize("saturation", [1.0, 0.4, 3.0])
@pytest.mark.parametrize("hue", [0.0, 25.0])
def test_hue_and_saturation(saturation: float, hue: float) -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 40, 3)).astype(np.uint8)
    image[0] = 90  # gray stays gray
    param = fixed(saturation_prob=1, saturation_lower=saturation, saturation_upper=saturation,
                  hue_prob=1, hue_delta=hue)  # fmt: skip

    class Generator:
        """Draws the lower end, or the middle where the ends have other signs."""

        def random(self) -> float:
            return 0.0

        def uniform(self, low: float, high: float) -> float:
            return high if low == -high else low

        def permutation(self, count: int) -> np.ndarray:
            return np.arange(count)

    found = distort(image, param, Generator())  # type: ignore[arg-type]
    for before, after in zip(image.reshape(-1, 3) / 255, found.reshape(-1, 3) / 255, strict=True):
        h, s, v = colorsys.rgb_to_hsv(*before[::-1])
        wanted = colorsys.hsv_to_rgb((h + hue / 180) % 1, min(1, s * saturation), v)
        np.testing.assert_allclose(after[::-1], wanted, atol=0.6 / 255)


def test_a_window_beyond_the_image_shows_the_mean() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    generator = np.random.default_rng(0)
    found = show(image, Window(-1, 2, 4, 5), np.array([7, 8, 9]), None, generator)
    assert found.shape == (4, 5, 3)
    np.testing.assert_array_equal(found[1:3, :2], image[:, 2:])
    assert (found[0] == [7, 8, 9]).all()
    assert (found[:, 2:] == [7, 8, 9]).all()
    nothing = show(image, Window(5, 5, 2, 2), np.empty(0), None, generator)
    assert not nothing.any()
