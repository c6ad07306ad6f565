"""The softmax loss, the accuracy, and the sums that make a net's loss."""

from __future__ import annotations

from typing import Any

from ... import primitives as ops
from ...tensor import Run, Tensor, sequence
from ..layout import c_type
from ..registry import Context, primitive
from ..runtime.compile import kernel, kernel_from
from ..runtime.launch import blocks_for, launch
from .normalization import Rows

SMALL_ROWS, SMALL_SCORES = 512, 32
"""Maximum rows and scores for which one block computes the whole loss, a thread per row."""


def _macros(a: ops.ClassLoss | ops.Accuracy) -> dict[str, Any]:
    """What tells a kernel which label does not count and the weights of the classes, if any."""
    weights = None if isinstance(a, ops.Accuracy) else a.weights
    macros: dict[str, Any] = {} if a.ignore is None else {"IGNORE": a.ignore}
    if weights is not None:
        macros["WEIGHTS"] = ", ".join(f"{float(weight)!r}f" for weight in weights)
    return macros


def block_for(count: int) -> int:
    """Threads of a single block that sums that many numbers."""
    return min(1024, max(32, -(-count // 32) * 32))


def _mean(note: Tensor, y: Tensor, *, label: Tensor | None = None, fixed: float = 0) -> Run:
    """A step that writes the mean of the notes that are not -1: of each class if there are labels.
    fixed: what to divide by instead of how many there are."""
    arguments = [note, label, y, note.count, fixed]
    block = block_for(note.count)
    return launch(kernel("loss", "mean_of_rows"), max(1, y.count), arguments, block=block)


@primitive("own")
def softmax_loss(ctx: Context, a: ops.SoftmaxLoss) -> Run:
    ctx.backend.choose_layout(a.probability, "float32")
    ctx.choose_layouts(a.label, a.loss)
    rows = Rows(ctx, a.axis, a.x, a.probability)
    x, probability = rows.tensors
    label, loss = ctx.row_major(a.label), ctx.row_major(a.loss)
    fixed = a.fixed_normalizer(x) or 0
    macros = {"X_T": x, "P_T": probability, **_macros(a)}
    if rows.count <= SMALL_ROWS and rows.length <= SMALL_SCORES:
        function = kernel("loss", "softmax_loss", SCORES=rows.length, **macros)
        arguments = [x, label, probability, loss, fixed, rows.count, rows.stride]
        return launch(function, 1, arguments, block=-(-rows.count // 32) * 32)
    note = ctx.temporary((rows.count,))
    losses = rows.launch("softmax_losses", [x, label, probability, note], **macros)
    return sequence([losses, _mean(note, loss, fixed=fixed)])


@primitive("own")
def softmax_loss_backward(ctx: Context, a: ops.SoftmaxLossBackward) -> Run:
    ctx.choose_layouts(a.label)
    rows = Rows(ctx, a.axis, a.probability, a.dx)
    probability, dx = rows.tensors
    label = ctx.row_major(a.label)
    fixed, macros = a.fixed_normalizer(dx) or 0, _macros(a)
    steps, counted = [], None
    if not fixed:
        counted = ctx.temporary((1,))
        function = kernel("loss", "count_labels", **macros)
        steps.append(launch(function, 1, [label, counted, rows.count], block=1024))
    function = kernel("loss", "softmax_loss_backward", P_T=probability, DX_T=dx, **macros)
    arguments = [probability, label, a.dloss, counted, 1 / max(fixed, 1), dx, *rows.shape]
    return sequence([*steps, launch(function, blocks_for(dx.count), arguments)])


@primitive("own")
def accuracy(ctx: Context, a: ops.Accuracy) -> Run:
    ctx.choose_layouts(a.label, a.y, a.per_class)
    rows = Rows(ctx, a.axis, a.x)
    (x,) = rows.tensors
    label = ctx.row_major(a.label)
    note = ctx.temporary((rows.count,))
    steps = [rows.launch("accuracy", [x, label, note], a.top_k, X_T=x, **_macros(a))]
    steps.append(_mean(note, ctx.row_major(a.y)))
    if a.per_class is not None:
        steps.append(_mean(note, ctx.row_major(a.per_class), label=label))
    return sequence(steps)


@primitive("own")
def total(ctx: Context, a: ops.Total) -> Run:
    ctx.choose_layouts(*a.xs)
    declared = ", ".join(f"const {c_type(x)}* x{i}" for i, x in enumerate(a.xs))
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
