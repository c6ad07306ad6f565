"""Owns pooling and local response normalization on oneDNN, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...tensor import Step, Tensor
from . import api
from .api import Descriptor, PrimitiveDescriptor, Unsupported
from .memory import Layout, Preparation, is_open


def _windows(
    x: Tensor, y: Tensor, kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int]
) -> list[Sequence[int]]:
    """Strides, kernel, dilations less one, and padding before and after, as oneDNN wants them."""
    after = [
        max(0, (out - 1) * step + size - extent - before)
        for out, step, size, extent, before in zip(
            y.shape[2:], stride, kernel, x.shape[2:], pad, strict=True
        )
    ]
    return [stride, kernel, [0] * len(kernel), pad, after]


def _forward(
    p: Preparation, algorithm: int, training: bool, x: Descriptor, y: Descriptor, windows: Any
) -> PrimitiveDescriptor:
    kind = api.FORWARD_TRAINING if training else api.FORWARD_INFERENCE
    return p.library.describe("pooling_forward", kind, algorithm, x, y, *windows)


def _backward(
    p: Preparation, algorithm: int, dy: Tensor, index: Tensor | None, dx: Tensor, windows: Any
) -> Step:
    def describe(dx: Descriptor, dy: Descriptor) -> PrimitiveDescriptor:
        hint = _forward(p, algorithm, True, dx, dy, windows)
        return p.library.describe("pooling_backward", algorithm, dx, dy, *windows, hint)

    chosen = p.choose(describe, p.held(dx), p.held(dy))
    return p.execute(
        chosen,
        {
            api.DIFF_DST: p.source(dy, chosen.wants(api.DIFF_DST)),
            api.WORKSPACE: index and (index, chosen.wants(api.WORKSPACE)),
            api.DIFF_SRC: p.target(dx, chosen.wants(api.DIFF_SRC)),
        },
    )


def note_in(tensor: Tensor, workspace: Descriptor | None, element_bytes: int = 4) -> None:
    """Let an open tensor hold what the library notes for its backward."""
    if not is_open(tensor):
        raise Unsupported("the note must be row-major")
    if workspace is not None:
        tensor.layout = Layout(workspace, workspace, -(-workspace.bytes // element_bytes))


def max_pooling(
    p: Preparation,
    x: Tensor,
    y: Tensor,
    index: Tensor | None,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
) -> Step:
    """See `Program.max_pooling`."""
    windows = _windows(x, y, kernel, stride, pad)

    def describe(x: Descriptor, y: Descriptor) -> PrimitiveDescriptor:
        return _forward(p, api.MAX, index is not None, x, y, windows)

    chosen = p.choose(describe, p.held(x), p.held(y))
    workspace = chosen.wants(api.WORKSPACE)
    if index is not None:
        note_in(index, workspace)
    return p.execute(
        chosen,
        {
            api.SRC: p.source(x, chosen.wants(api.SRC)),
            api.DST: p.target(y, chosen.wants(api.DST)),
            api.WORKSPACE: index and (index, workspace),
        },
    )


def max_pooling_backward(
    p: Preparation,
    dy: Tensor,
    index: Tensor,
    dx: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
) -> Step | None:
    """See `Program.max_pooling_backward`."""
    if index.layout is None:  # noted by another implementation
        return None
    return _backward(p, api.MAX, dy, index, dx, _windows(dx, dy, kernel, stride, pad))


def _average(windows: list[Sequence[int]]) -> int:
    """The algorithm with Caffe's divisor: the window's area within the padded image."""
    *_, before, after = windows
    if not any(before):
        return api.AVERAGE_EXCLUDE_PADDING
    if all(right <= left for left, right in zip(before, after, strict=True)):
        return api.AVERAGE_INCLUDE_PADDING
    raise Unsupported("windows that reach beyond the padding")


def average_pooling(
    p: Preparation,
    x: Tensor,
    y: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
) -> Step:
    """See `Program.average_pooling`."""
    windows = _windows(x, y, kernel, stride, pad)
    algorithm = _average(windows)

    def describe(x: Descriptor, y: Descriptor) -> PrimitiveDescriptor:
        return _forward(p, algorithm, False, x, y, windows)

    chosen = p.choose(describe, p.held(x), p.held(y))
    return p.execute(
        chosen,
        {
            api.SRC: p.source(x, chosen.wants(api.SRC)),
            api.DST: p.target(y, chosen.wants(api.DST)),
        },
    )


def average_pooling_backward(
    p: Preparation,
    dy: Tensor,
    dx: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
) -> Step:
    """See `Program.average_pooling_backward`."""
    windows = _windows(dx, dy, kernel, stride, pad)
    return _backward(p, _average(windows), dy, None, dx, windows)


def _normalization(
    p: Preparation,
    x: Descriptor,
    y: Descriptor,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    within_channel: bool,
) -> PrimitiveDescriptor:
    region = api.LRN_WITHIN_CHANNEL if within_channel else api.LRN_ACROSS_CHANNELS
    return p.library.describe(
        "lrn_forward", api.FORWARD_TRAINING, region, x, y, size, alpha, beta, k
    )


def lrn(p: Preparation, x: Tensor, y: Tensor, note: Tensor, **settings: Any) -> Step:
    """See `Program.lrn`."""
    if settings["within_channel"]:
        settings["k"] = 1.0

    def describe(x: Descriptor, y: Descriptor) -> PrimitiveDescriptor:
        return _normalization(p, x, y, **settings)

    chosen = p.choose(describe, p.held(x), p.held(y))
    workspace = chosen.wants(api.WORKSPACE)
    note_in(note, workspace or p.library.plain((1,)))
    return p.execute(
        chosen,
        {
            api.SRC: p.source(x, chosen.wants(api.SRC)),
            api.DST: p.target(y, chosen.wants(api.DST)),
            api.WORKSPACE: workspace and (note, workspace),
        },
    )


def lrn_backward(
    p: Preparation, x: Tensor, y: Tensor, dy: Tensor, note: Tensor, dx: Tensor, **settings: Any
) -> Step | None:
    """See `Program.lrn_backward`."""
    if note.layout is None:  # noted by another implementation
        return None
    within = settings.pop("within_channel")
    region = api.LRN_WITHIN_CHANNEL if within else api.LRN_ACROSS_CHANNELS
    size, alpha, beta = settings["size"], settings["alpha"], settings["beta"]
    k = 1.0 if within else settings["k"]
    held = p.held(x)
    hint = _normalization(p, held, p.held(y), size, alpha, beta, k, within)
    chosen = p.library.describe(
        "lrn_backward", region, *(hint.wants(api.SRC),) * 3, size, alpha, beta, k, hint
    )
    workspace = chosen.wants(api.WORKSPACE)
    return p.execute(
        chosen,
        {
            api.SRC: p.source(x, chosen.wants(api.SRC)),
            api.DIFF_DST: p.source(dy, chosen.wants(api.DIFF_DST)),
            api.WORKSPACE: workspace and (note, workspace),
            api.DIFF_SRC: p.target(dx, chosen.wants(api.DIFF_SRC)),
        },
    )
