"""Owns the softmax loss, the accuracy, and the sums that make a net's loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...tensor import Step, Tensor, sequence
from ..layout import C_TYPES, dtype_of
from ..registry import CudaCall, primitive
from ..runtime import device
from ..runtime.compile import kernel, kernel_from
from ..runtime.launch import THREADS, blocks_for, launch
from .normalization import Rows

SMALL_ROWS, SMALL_SCORES = 512, 32
"""Up to so many rows of so many scores, one block computes the whole loss, a thread each row."""


def _ignored(ignore: int | None) -> list[np.int32]:
    return [np.int32(ignore or 0), np.int32(ignore is not None)]


def _weights(weights: Sequence[float] | None) -> dict[str, str]:
    """The macro that tells a kernel the weights of the classes, if there are any."""
    if weights is None:
        return {}
    return {"WEIGHTS": ", ".join(f"{float(weight)!r}f" for weight in weights)}


def _fixed(normalization: str, rows: Rows, outer: int, ignore: int | None) -> float:
    """The normalizer, or 0 where it is the number of labels that count."""
    match normalization:
        case "VALID":
            return rows.count if ignore is None else 0.0
        case "FULL":
            return rows.count
        case "BATCH_SIZE":
            return outer
        case "NONE":
            return 1.0
    raise ValueError(f"unknown normalization {normalization!r}")


@primitive("own")
def softmax_loss(
    call: CudaCall,
    x: Tensor,
    label: Tensor,
    probability: Tensor,
    loss: Tensor,
    *,
    axis: int,
    ignore: int | None,
    normalization: str,
    weights: Sequence[float] | None = None,
) -> Step:
    call.backend.choose_layout(probability, "float32")
    call.backend.choose_layout(label)
    call.backend.choose_layout(loss)
    rows = Rows(call, axis, x, probability)
    x, probability = rows.tensors
    label = call.in_layout(label, nhwc=False, dtype="float32")
    loss = call.in_layout(loss, nhwc=False, dtype="float32")
    fixed = _fixed(normalization, rows, math.prod(x.shape[:axis]), ignore)
    sizes = [*rows.shape, *_ignored(ignore)]
    types = {"X": x, "P": probability}
    if rows.count <= SMALL_ROWS and rows.length <= SMALL_SCORES:
        function = kernel(
            "loss", "softmax_loss", SCORES=rows.length,
            **{f"{name}_T": C_TYPES[dtype_of(each)] for name, each in types.items()},
            **_weights(weights),
        )  # fmt: skip
        places = [np.int64(rows.count), np.int64(rows.step), *_ignored(ignore)]
        arguments = [x, label, probability, loss, np.float32(fixed), *places]
        return launch(function, 1, arguments, block=-(-rows.count // 32) * 32)
    note = call.temporary((rows.count,))
    summed = [note, loss, np.int64(rows.count), np.float32(fixed)]
    return sequence([
        rows.launch(
            "softmax_losses", types, [x, label, probability, note, *sizes], **_weights(weights)
        ),
        launch(kernel("loss", "sum_losses"), 1, summed, block=_block(rows.count)),
    ])  # fmt: skip


def _block(count: int) -> int:
    """Threads of a single block that sums so many numbers."""
    return min(1024, max(32, -(-count // 32) * 32))


@primitive("own")
def softmax_loss_backward(
    call: CudaCall,
    probability: Tensor,
    label: Tensor,
    dloss: Tensor,
    dx: Tensor,
    *,
    axis: int,
    ignore: int | None,
    normalization: str,
    weights: Sequence[float] | None = None,
) -> Step:
    call.backend.choose_layout(label)
    rows = Rows(call, axis, probability, dx)
    probability, dx = rows.tensors
    label = call.in_layout(label, nhwc=False, dtype="float32")
    fixed = _fixed(normalization, rows, math.prod(dx.shape[:axis]), ignore)
    steps, counted = [], None
    if not fixed:
        counted = call.temporary((1,))
        arguments = [label, counted, np.int64(rows.count), *_ignored(ignore)]
        steps.append(launch(kernel("loss", "count_labels"), 1, arguments, block=1024))
    function = kernel("loss", "softmax_loss_backward", P_T=C_TYPES[dtype_of(probability)],
                      DX_T=C_TYPES[dtype_of(dx)], **_weights(weights))  # fmt: skip
    scale = np.float32(1 / max(fixed, 1))
    arguments = [probability, label, dloss, counted, scale, dx, *rows.shape, *_ignored(ignore)]
    steps.append(launch(function, blocks_for(dx.count), arguments))
    return sequence(steps)


@primitive("own")
def accuracy(
    call: CudaCall,
    x: Tensor,
    label: Tensor,
    y: Tensor,
    per_class: Tensor | None,
    *,
    axis: int,
    top_k: int,
    ignore: int | None,
) -> Step:
    for tensor in label, y, per_class:
        if tensor is not None:
            call.backend.choose_layout(tensor)
    rows = Rows(call, axis, x)
    (x,) = rows.tensors
    label = call.in_layout(label, nhwc=False, dtype="float32")
    note = call.temporary((rows.count,))
    arguments = [x, label, note, *rows.shape, np.int32(top_k), *_ignored(ignore)]
    steps = [rows.launch("accuracy", {"X": x}, arguments)]
    for target, blocks in (y, 1), (per_class, rows.length):
        if target is not None:
            target = call.in_layout(target, nhwc=False, dtype="float32")
            by_class = np.int32(target.shape != () and target is not y)
            arguments = [note, label, target, np.int64(rows.count), by_class]
            block = _block(rows.count)
            steps.append(launch(kernel("loss", "mean_notes"), blocks, arguments, block=block))
    return sequence(steps)


@primitive("own")
def total(call: CudaCall, xs: list[Tensor], y: Tensor, *, weights: Sequence[float]) -> Step:
    for x in xs:
        call.backend.choose_layout(x)
    declared = ", ".join(f"const {C_TYPES[dtype_of(x)]}* x{i}" for i, x in enumerate(xs))
    sums = "\n".join(
        f"sum = 0; for (int64_t id = threadIdx.x; id < {x.size}ll; id += blockDim.x)"
        f" sum += to_float(x{i}[id]); total += {float(weight)!r}f * block_sum(sum);"
        for i, (x, weight) in enumerate(zip(xs, weights, strict=True))
    )
    text = f"""
extern "C" __global__ void total({declared}, float* y) {{
    PDL_BEGIN;
    float sum, total = 0;
    {sums}
    if (threadIdx.x == 0) *y = total;
}}
"""
    block = _block(max(x.size for x in xs))
    return launch(kernel_from(text, "total"), 1, [*xs, y], block=block)


@primitive("own")
def sum_of_squares(call: CudaCall, x: Tensor, y: Tensor) -> Step:
    call.backend.choose_layout(x)
    blocks = min(device.current().enough_blocks, max(1, -(-x.size // (THREADS * 8))))
    partial = call.temporary((blocks,))
    squares = kernel("reduce", "square_parts", T=C_TYPES[dtype_of(x)])
    arguments = [partial, y, np.int64(blocks), np.float32(1), np.int32(1)]
    return sequence([
        launch(squares, blocks, [x, partial, np.int64(x.size)]),
        launch(kernel("reduce", "add_total", T="float"), 1, arguments, block=_block(blocks)),
    ])  # fmt: skip
