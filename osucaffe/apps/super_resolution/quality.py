"""Measures of image quality: PSNR and SSIM, as papers on super-resolution report them.

Both use the luma alone and leave out a border of as many pixels as the image was enlarged by
(Lim et al., CVPR Workshops 2017, section 4.2, for all but DIV2K).
"""

from __future__ import annotations

import numpy as np

_PEAK = 255
_SIDE, _SIGMA = 11, 1.5
_C1, _C2 = (0.01 * _PEAK) ** 2, (0.03 * _PEAK) ** 2


def luma(image: np.ndarray) -> np.ndarray:
    """The luma (height, width), float64, 16 to 235, of bytes (3, height, width), blue first.

    That of ITU-R BT.601, with the numbers of MATLAB's rgb2ycbcr, not rounded.
    """
    values: np.ndarray = np.tensordot([24.966, 128.553, 65.481], image.astype(np.float64), 1)
    return values / 255 + 16


def psnr(image: np.ndarray, original: np.ndarray, border: int) -> float:
    """The peak signal-to-noise ratio in dB of two images as `luma` takes them; the peak is 255.

    Infinite for equal ones.
    """
    one, other = _inner(image, border), _inner(original, border)
    error = float(np.mean((one - other) ** 2))
    return 10 * float(np.log10(_PEAK**2 / error)) if error else np.inf


def ssim(image: np.ndarray, original: np.ndarray, border: int) -> float:
    """The mean structural similarity of two images as `luma` takes them; 1 for equal ones.

    Wang, Bovik, Sheikh, Simoncelli: Image quality assessment: from error visibility to structural
    similarity (IEEE Transactions on Image Processing 13(4), 2004), equations 13 and 14: a Gaussian
    window of 11 x 11 with a standard deviation of 1.5, K1 = 0.01, K2 = 0.03, where the window fits.
    """
    one, other = _inner(image, border), _inner(original, border)
    if min(one.shape) < _SIDE:
        raise ValueError(f"too small for a window of {_SIDE} x {_SIDE}: {one.shape}")
    mean_one, mean_other = _smooth(one), _smooth(other)
    product = mean_one * mean_other
    squares = mean_one**2 + mean_other**2
    variances = _smooth(one**2) + _smooth(other**2) - squares
    covariance = _smooth(one * other) - product
    likeness = (2 * product + _C1) * (2 * covariance + _C2)
    return float(np.mean(likeness / ((squares + _C1) * (variances + _C2))))


def _inner(image: np.ndarray, border: int) -> np.ndarray:
    values = luma(image)
    height, width = values.shape
    return values[border : height - border, border : width - border]


def _smooth(values: np.ndarray) -> np.ndarray:
    """The means of values in each Gaussian window that fits."""
    x = np.arange(_SIDE) - _SIDE // 2
    weights = np.exp(-(x**2) / (2 * _SIGMA**2))
    weights /= weights.sum()
    for _ in range(2):  # down the columns, then, the image being turned, along the rows
        count = len(values) - _SIDE + 1
        total = weights[0] * values[:count]
        for at in range(1, _SIDE):
            total += weights[at] * values[at : at + count]
        values = total.T
    return values
