"""Owns the softmax loss, the accuracy, and the sums that make a net's loss."""

from __future__ import annotations

import numpy as np

from ...primitives.losses import Accuracy, ClassLoss, SoftmaxLoss, SoftmaxLossBackward, Total
from ...tensor import Step, sequence
from ..layout import C_TYPES, dtype_of
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel, kernel_from
from ..runtime.launch import blocks_for, launch
from .normalization import Rows

SMALL_ROWS, SMALL_SCORES = 512, 32
"""Up to so many rows of so many scores, one block computes the whole loss, a thread each row."""


def _ignored(a: ClassLoss | Accuracy) -> list[np.int32]:
    return [np.int32(a.ignore or 0), np.int32(a.ignore is not None)]


def _weights(a: ClassLoss) -> dict[str, str]:
    """The macro that tells a kernel the weights of the classes, if there are any."""
    if a.weights is None:
        return {}
    return {"WEIGHTS": ", ".join(f"{float(weight)!r}f" for weight in a.weights)}


@primitive("own")
def softmax_loss(call: CudaCall, a: SoftmaxLoss) -> Step:
    call.backend.choose_layout(a.probability, "float32")
    call.choose_layouts(a.label, a.loss)
    rows = Rows(call, a.axis, a.x, a.probability)
    x, probability = rows.tensors
    label, loss = call.row_major(a.label), call.row_major(a.loss)
    fixed = a.fixed_normalizer(x) or 0
    sizes = [*rows.shape, *_ignored(a)]
    types = {"X": x, "P": probability}
    if rows.count <= SMALL_ROWS and rows.length <= SMALL_SCORES:
        function = kernel(
            "loss", "softmax_loss", SCORES=rows.length,
            **{f"{name}_T": C_TYPES[dtype_of(each)] for name, each in types.items()},
            **_weights(a),
        )  # fmt: skip
        places = [np.int64(rows.count), np.int64(rows.step), *_ignored(a)]
        arguments = [x, label, probability, loss, np.float32(fixed), *places]
        return launch(function, 1, arguments, block=-(-rows.count // 32) * 32)
    note = call.temporary((rows.count,))
    summed = [note, loss, np.int64(rows.count), np.float32(fixed)]
    return sequence([
        rows.launch(
            "softmax_losses", types, [x, label, probability, note, *sizes], **_weights(a)
        ),
        launch(kernel("loss", "sum_losses"), 1, summed, block=block_for(rows.count)),
    ])  # fmt: skip


def block_for(count: int) -> int:
    """Threads of a single block that sums so many numbers."""
    return min(1024, max(32, -(-count // 32) * 32))


@primitive("own")
def softmax_loss_backward(call: CudaCall, a: SoftmaxLossBackward) -> Step:
    call.choose_layouts(a.label)
    rows = Rows(call, a.axis, a.probability, a.dx)
    probability, dx = rows.tensors
    label = call.row_major(a.label)
    fixed = a.fixed_normalizer(dx) or 0
    steps, counted = [], None
    if not fixed:
        counted = call.temporary((1,))
        arguments = [label, counted, np.int64(rows.count), *_ignored(a)]
        steps.append(launch(kernel("loss", "count_labels"), 1, arguments, block=1024))
    function = kernel("loss", "softmax_loss_backward", P_T=C_TYPES[dtype_of(probability)],
                      DX_T=C_TYPES[dtype_of(dx)], **_weights(a))  # fmt: skip
    scale = np.float32(1 / max(fixed, 1))
    arguments = [probability, label, a.dloss, counted, scale, dx, *rows.shape, *_ignored(a)]
    steps.append(launch(function, blocks_for(dx.count), arguments))
    return sequence(steps)


@primitive("own")
def accuracy(call: CudaCall, a: Accuracy) -> Step:
    call.choose_layouts(a.label, a.y, a.per_class)
    rows = Rows(call, a.axis, a.x)
    (x,) = rows.tensors
    label = call.row_major(a.label)
    note = call.temporary((rows.count,))
    arguments = [x, label, note, *rows.shape, np.int32(a.top_k), *_ignored(a)]
    steps = [rows.launch("accuracy", {"X": x}, arguments)]
    for target, blocks in (a.y, 1), (a.per_class, rows.length):
        if target is not None:
            target = call.row_major(target)
            by_class = np.int32(target.shape != () and target is not a.y)
            arguments = [note, label, target, np.int64(rows.count), by_class]
            block = block_for(rows.count)
            steps.append(launch(kernel("loss", "mean_notes"), blocks, arguments, block=block))
    return sequence(steps)


@primitive("own")
def total(call: CudaCall, a: Total) -> Step:
    call.choose_layouts(*a.xs)
    declared = ", ".join(f"const {C_TYPES[dtype_of(x)]}* x{i}" for i, x in enumerate(a.xs))
    sums = "\n".join(
        f"sum = 0; for (int64_t id = threadIdx.x; id < {x.size}ll; id += blockDim.x)"
        f" sum += to_float(x{i}[id]); total += {float(weight)!r}f * block_sum(sum);"
        for i, (x, weight) in enumerate(zip(a.xs, a.weights, strict=True))
    )
    text = f"""
extern "C" __global__ void total({declared}, float* y) {{
    PDL_BEGIN;
    float sum, total = 0;
    {sums}
    if (threadIdx.x == 0) *y = total;
}}
"""
    block = block_for(max(x.size for x in a.xs))
    return launch(kernel_from(text, "total"), 1, [*a.xs, a.y], block=block)
