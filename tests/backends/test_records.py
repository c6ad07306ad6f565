"""Tests of the arithmetic of images that become input: bytes and floats, however they lie."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from osucaffe.backends.records import transform_record

random = np.random.default_rng(0)
CHOICES = list(itertools.product((0, 3), (0, 2), (0, 1)))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("mean", [None, (3, 1, 1), (3, 9, 8)])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("scale", [1, 0.25])
def test_crop_mirror_mean_and_scale(
    dtype: str, mean: tuple[int, ...] | None, interleaved: bool, scale: float
) -> None:
    image = random.integers(0, 256, (3, 9, 8)).astype(dtype)
    given = image.transpose(1, 2, 0).copy().transpose(2, 0, 1) if interleaved else image
    average = None if mean is None else random.integers(0, 9, mean).astype(np.float32) / 4
    centred = image.astype(np.float32) - (0 if average is None else average)
    for top, left, mirrored in CHOICES:
        out = np.full((3, 6, 5), np.nan, np.float32)
        transform_record(given, out, (top, left, mirrored), mean=average, scale=scale)
        wanted = centred[:, top : top + 6, left : left + 5] * scale
        np.testing.assert_array_equal(out, wanted[..., ::-1] if mirrored else wanted)
    np.testing.assert_array_equal(given, image)  # it was only read


def test_a_batch_at_once() -> None:
    images = random.integers(0, 256, (4, 1, 5, 6), dtype=np.uint8)
    out = np.empty((4, 1, 3, 6), np.float32)
    transform_record(images, out, (1, 0, 1), mean=None, scale=2)
    np.testing.assert_array_equal(out, images[:, :, 1:4, ::-1] * 2.0)
