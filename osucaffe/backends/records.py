"""Owns the arithmetic by which an image becomes input: crop, mirror, mean and scale."""

from __future__ import annotations

import numpy as np

Choice = tuple[int, int, int]
"""Of one record: the first row and column of the crop, and 1 where it is mirrored, else 0."""


def transform_record(
    image: np.ndarray,
    out: np.ndarray,
    choice: Choice,
    *,
    mean: np.ndarray | None,
    scale: float | np.floating,
) -> None:
    """out = (crop of image - mean) * scale, mirrored perhaps, in one or two passes over out.

    image: (..., channels, height, width) of any type. out: the same of floats, with the extents of
    the crop. mean: (channels, 1, 1), or of an image's shape, from which the same crop is taken.
    """
    top, left, mirrored = choice
    height, width = out.shape[-2:]
    window = (..., slice(top, top + height), slice(left, left + width))
    image = image[window]
    if mean is not None and mean.shape[-2:] != (1, 1):
        mean = mean[window]
    target = out[..., ::-1] if mirrored else out
    if image.dtype == np.uint8 and (mirrored or image.strides[-1] != 1):
        # Bytes are brought in order first: moving them is fast, to compute out of order is not.
        image = np.ascontiguousarray(image[..., ::-1] if mirrored else image)
        mean = mean[..., ::-1] if mirrored and mean is not None else mean
        target = out
    if mean is not None:
        np.subtract(image, mean, out=target, dtype=out.dtype)
        if scale != 1:
            np.multiply(out, scale, out=out)
    elif scale != 1:
        np.multiply(image, scale, out=target, dtype=out.dtype)
    else:
        np.copyto(target, image)
