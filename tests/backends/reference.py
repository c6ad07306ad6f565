"""Plain float64 versions of the primitives, which every backend's are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def gradient(function: Callable[[np.ndarray], np.ndarray], x, dy) -> np.ndarray:
    """The gradient of sum(function(x) * dy) by central differences."""
    x, step = x.astype(np.float64), 1e-5
    result = np.empty_like(x)
    for place in np.ndindex(*x.shape):
        value = x[place]
        x[place] = value + step
        above = function(x)
        x[place] = value - step
        below = function(x)
        x[place] = value
        result[place] = ((above - below) * dy).sum() / (2 * step)
    return result


def convolution(x, w, b, stride, pad, dilation, group):
    """Correlation, one tap of the kernel after another."""
    axes = len(stride)
    kernel = w.shape[2:]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])
    out = [(e - r) // s + 1 for e, r, s in zip(padded.shape[2:], reach, stride, strict=True)]
    y = np.zeros((x.shape[0], group, w.shape[0] // group, *out))
    weights = w.reshape(*y.shape[1:3], *w.shape[1:])
    padded = padded.reshape(x.shape[0], group, -1, *padded.shape[2:])
    for tap in np.ndindex(*kernel):
        begin = [tap[i] * dilation[i] for i in range(axes)]
        window = tuple(
            slice(begin[i], begin[i] + out[i] * stride[i], stride[i]) for i in range(axes)
        )
        piece = padded[(..., *window)][(..., *(slice(extent) for extent in out))]
        y += np.einsum("goc,ngc...->ngo...", weights[(..., *tap)], piece)
    y = y.reshape(x.shape[0], w.shape[0], *out)
    return y if b is None else y + b.reshape(-1, *[1] * axes)


def im2col(x, kernel, stride, pad, dilation):
    """The windows by convolution: with a filter for each channel and tap that picks just it."""
    channels = x.shape[1]
    picks = np.eye(channels * math.prod(kernel)).reshape(-1, channels, *kernel)
    return convolution(x, picks, None, stride, pad, dilation, 1)


def inner_product(x, w, b, axis, transpose):
    rows = x.reshape(math.prod(x.shape[:axis]), -1)
    y = rows @ (w if transpose else w.T)
    return (y if b is None else y + b).reshape(*x.shape[:axis], -1)


def squares32(counter: int, key: int) -> int:
    """Widynski 2020, section 4, with Python's integers."""
    mask = 2**64 - 1
    y = x = counter * key & mask
    z = y + key & mask
    for addend in (y, z, y):
        x = x * x + addend & mask
        x = (x >> 32) | (x << 32) & mask
    return (x * x + z & mask) >> 32


def _windows(x, out, kernel, stride, pad):
    """For each output position: where it is in y, the window's values (N, C, places), the index of
    its places in the channel, and its area in the padding."""
    image = x.shape[2:]
    flat = np.arange(math.prod(image)).reshape(image)
    for position in np.ndindex(*out):
        starts = [at * s - p for at, s, p in zip(position, stride, pad, strict=True)]
        ends = [start + k for start, k in zip(starts, kernel, strict=True)]
        area = math.prod(
            min(end, e + p) - start
            for start, end, e, p in zip(starts, ends, image, pad, strict=True)
        )
        places = flat[tuple(slice(max(a, 0), b) for a, b in zip(starts, ends, strict=True))].ravel()
        at = (slice(None), slice(None), *position)
        yield at, x.reshape(*x.shape[:2], -1)[:, :, places], places, area


def max_pooling(x, out, kernel, stride, pad):
    """(maxima, index of the first maximum in the channel)."""
    y = np.empty((*x.shape[:2], *out))
    index = np.empty(y.shape, np.int64)
    for at, values, places, _ in _windows(x, out, kernel, stride, pad):
        y[at], index[at] = values.max(axis=-1), places[values.argmax(axis=-1)]
    return y, index


def average_pooling(x, out, kernel, stride, pad):
    y = np.empty((*x.shape[:2], *out))
    for at, values, _, area in _windows(x, out, kernel, stride, pad):
        y[at] = values.sum(axis=-1) / area
    return y


def stochastic_pooling(x, out, kernel, stride, key, start):
    """(values drawn, their index in the channel): x / sum is the chance of each element."""
    y = np.empty((*x.shape[:2], *out))
    index = np.empty(y.shape, np.int64)
    numbers = np.arange(y.size).reshape(y.shape)
    for at, values, places, _ in _windows(x, out, kernel, stride, [0] * len(kernel)):
        for n, c in np.ndindex(*x.shape[:2]):
            chance = (squares32(start + int(numbers[at][n, c]), key) >> 8) / 2**24
            drawn = int(np.argmax(values[n, c].cumsum() > chance * values[n, c].sum()))
            y[at][n, c], index[at][n, c] = values[n, c, drawn], places[drawn]
    return y, index


def expected_pooling(x, out, kernel, stride):
    y = np.zeros((*x.shape[:2], *out))
    for at, values, *_ in _windows(x, out, kernel, stride, [0] * len(kernel)):
        total = values.sum(axis=-1)
        y[at] = (values**2).sum(axis=-1) / np.where(total > 0, total, 1)
    return y


def lrn(x, size, alpha, beta, k, within_channel):
    reach, y = size // 2, np.empty_like(x)
    for place in np.ndindex(*x.shape):
        n, c, *pixel = place
        if within_channel:
            window = tuple(slice(max(at - reach, 0), at + reach + 1) for at in pixel)
            s = 1 + alpha / size ** len(pixel) * (x[(n, c, *window)] ** 2).sum()
        else:
            near = x[(n, slice(max(c - reach, 0), c + reach + 1), *pixel)]
            s = k + alpha / size * (near**2).sum()
        y[place] = x[place] * s**-beta
    return y


def moments(x):
    """(mean, variance) of each channel."""
    axes = (0, *range(2, x.ndim))
    return x.mean(axis=axes), x.var(axis=axes)


def batch_norm_statistics(x, running_mean, running_variance, running_weight, eps, momentum):
    mean, variance = moments(x)
    count = x.size // x.shape[1]
    return {
        "mean": mean, "inv_std": 1 / np.sqrt(variance + eps),
        "running_mean": momentum * running_mean + mean,
        "running_variance": momentum * running_variance + count / (count - 1) * variance,
        "running_weight": momentum * running_weight + 1,
    }  # fmt: skip


def batch_norm(x, mean, inv_std, scale, bias, addend, relu):
    for values, name in (
        (mean, "subtract"),
        (inv_std, "multiply"),
        (scale, "multiply"),
        (bias, "add"),
    ):
        if values is not None:
            x = getattr(np, name)(x, values.reshape(-1, *[1] * (x.ndim - 2)))
    x = x if addend is None else x + addend
    return np.maximum(x, 0) if relu else x


def softmax(x, axis):
    return np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)


def softmax_loss(x, label, axis, ignore, normalization, weights=None):
    """(loss, probability)."""
    rows = np.moveaxis(x, axis, -1)
    wanted = label.reshape(rows.shape[:-1]).astype(int)
    counted = np.full(wanted.shape, True) if ignore is None else wanted != ignore
    rows, wanted = rows[counted], wanted[counted]
    if ((wanted < 0) | (wanted >= rows.shape[1])).any():
        return np.nan, softmax(x, axis)
    rows = rows - rows.max(axis=1, keepdims=True)
    losses = np.log(np.exp(rows).sum(axis=1)) - rows[np.arange(len(rows)), wanted]
    normalizer = {
        "FULL": label.size, "VALID": len(rows), "BATCH_SIZE": math.prod(x.shape[:axis]), "NONE": 1,
    }[normalization]  # fmt: skip
    total = losses.sum() if weights is None else losses @ np.asarray(weights)[wanted]
    return total / max(normalizer, 1), softmax(x, axis)


def accuracy(x, label, axis, top_k, ignore):
    """(accuracy, accuracy of each class)."""
    rows = np.moveaxis(x, axis, -1)
    hits, counts = np.zeros(rows.shape[-1]), np.zeros(rows.shape[-1])
    for place in np.ndindex(*rows.shape[:-1]):
        wanted = int(label[place])
        if wanted == ignore:
            continue
        rivals = sum(
            value >= rows[place][wanted] for i, value in enumerate(rows[place]) if i != wanted
        )
        counts[wanted] += 1
        hits[wanted] += rivals < top_k
    return hits.sum() / max(counts.sum(), 1), hits / np.maximum(counts, 1)


def recurrent(x, keep, w, h_first, c_first):
    """(h, c): an LSTM (Zaremba & Sutskever 2014); without c_first: h = tanh(x + w h), no c."""
    sigmoid, before, inner = lambda v: 1 / (1 + np.exp(-v)), h_first, c_first
    h, c = [], []
    for step, kept in zip(x, keep[:, :, None], strict=True):
        gates = step + kept * before @ w.T
        if c_first is None:
            before = np.tanh(gates)
        else:
            i, f, o, g = np.split(gates, 4, axis=1)
            inner = kept * sigmoid(f) * inner + sigmoid(i) * np.tanh(g)
            before = sigmoid(o) * np.tanh(inner)
            c.append(inner)
        h.append(before)
    return np.array(h), np.array(c)


def top_k(x, k, axis):
    """(indices, values) of the largest, the later of equals first."""
    rows = np.moveaxis(x, axis, -1)
    index = np.empty((*rows.shape[:-1], k))
    for place in np.ndindex(*rows.shape[:-1]):
        row = rows[place]
        index[place] = sorted(range(len(row)), key=lambda i: (row[i], i), reverse=True)[:k]
    value = np.take_along_axis(rows, index.astype(int), axis=-1)
    return np.moveaxis(index, -1, axis), np.moveaxis(value, -1, axis)
