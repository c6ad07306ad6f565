"""The reference of losses, each from Caffe's definition (or its fork's)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .layers import Context, Tensors, _probabilities, layer


def _valid(c: Context, label: Tensor) -> Tensor:
    """Which labels count."""
    p = c.layer.loss_param
    ignored = p.ignore_label if p.HasField("ignore_label") else math.inf
    return label != ignored


def _normalizer(c: Context, valid: Tensor, outer: int, mode: str) -> float:
    """What a loss is divided by; mode: where the layer names none."""
    p = c.layer.loss_param
    if p.HasField("normalization"):
        mode = p.NormalizationMode.Name(p.normalization)
    elif p.HasField("normalize"):
        mode = "VALID" if p.normalize else "BATCH_SIZE"
    counts = {"FULL": valid.numel(), "VALID": int(valid.sum()), "BATCH_SIZE": outer, "NONE": 1}
    return max(1.0, counts[mode])


def _classes(x: Tensor, label: Tensor, axis: int) -> tuple[Tensor, Tensor, int]:
    """Scores with the classes last, labels alike, and how many items there are."""
    axis %= x.dim()
    scores = x.movedim(axis, -1)
    return scores, label.detach().reshape(scores.shape[:-1]).long(), math.prod(x.shape[:axis])


def _above(log: Tensor) -> Tensor:
    """A probability's logarithm as Caffe has it: kept above that of 1e-20, but for its slope."""
    return log + (log.detach().clamp(min=math.log(1e-20)) - log.detach())


@layer("SoftmaxWithLoss", "FocalLoss")
def _softmax_loss(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensors:
    axis = c.layer.softmax_param.axis
    scores, label, outer = _classes(x[0], x[1], axis)
    valid = _valid(c, label)
    safe = torch.where(valid, label, 0)
    picked = c.round(scores).gather(-1, safe[..., None])[..., 0]
    log = picked - c.round(scores).logsumexp(-1)
    loss = -log + c.slip(scores).sum(-1)
    # Of the least float, which the gradient does not know of.
    loss = loss.detach().clamp(max=-math.log(2.0**-126)) - loss.detach() + loss
    if c.layer.type == "FocalLoss":
        chance = c.round(log.exp())
        loss = p.alpha * c.round(1 - chance) ** p.gamma * loss
    total = (torch.where(valid, c.round(loss), 0)).sum() / _normalizer(c, valid, outer, "VALID")
    return [total, _probabilities(c, x[0], axis).detach()][: max(1, len(c.layer.top))]


@layer("InfogainLoss")
def _infogain(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    scores, label, outer = _classes(x[0], x[1], p.axis)
    valid = _valid(c, label)
    gain = x[2].detach().reshape(scores.shape[-1], -1)[torch.where(valid, label, 0)]
    log = _above(c.round(scores) - c.round(scores.logsumexp(-1, keepdim=True)))
    loss = -(gain * log + gain * c.slip(scores)).sum(-1)
    return torch.where(valid, c.round(loss), 0).sum() / _normalizer(c, valid, outer, "VALID")


@layer("Accuracy")
def _accuracy(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensors:
    scores, label, _ = _classes(x[0], x[1], p.axis)
    scores, label = scores.detach().reshape(-1, scores.shape[-1]), label.flatten()
    if p.HasField("ignore_label"):
        valid = label != p.ignore_label
        scores, label = scores[valid], label[valid]
    better = (scores >= scores.gather(1, label[:, None])).sum(1) - 1  # equal ones count against it
    hit = (better < p.top_k).double()
    each = [hit[label == k].mean() if (label == k).any() else 0.0 for k in range(scores.shape[1])]
    share = hit.mean() if len(hit) else torch.zeros(())
    return [share, torch.tensor(each)][: len(c.layer.top)]


@layer("HingeLoss")
def _hinge(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    scores = x[0].flatten(1) if x[0].dim() > 1 else x[0][:, None]
    side = torch.ones_like(scores)
    side[torch.arange(len(scores)), x[1].detach().flatten().long()] = -1
    margin = c.round(1 + side * scores).clamp(min=0)
    power = 1 if p.norm == p.L1 else 2
    return c.round(margin**power).sum() / len(scores)


@layer("MultinomialLogisticLoss")
def _logistic(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    chance = x[0].reshape(len(x[0]), -1).gather(1, x[1].detach().flatten().long()[:, None])
    return -c.round(_above(torch.log(chance.clamp(min=1e-300)))).sum() / len(x[0])


@layer("SigmoidCrossEntropyLoss")
def _sigmoid_loss(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    target = x[1].detach().reshape(x[0].shape)
    valid = _valid(c, target.trunc())
    loss = c.round(F.softplus(c.round(x[0]), threshold=1e9)) - c.round(x[0] * target)
    loss = loss + c.slip(x[0])
    divisor = _normalizer(c, valid, x[0].shape[0] if x[0].dim() else 1, "BATCH_SIZE")
    return torch.where(valid, loss, 0).sum() / divisor


@layer("EuclideanLoss")
def _euclidean(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    gap = c.round(x[0] - x[1].reshape(x[0].shape))
    return c.round(gap**2).sum() / (2 * x[0].shape[0])


@layer("L1Loss")
def _l1(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    gap = c.round(x[0] - x[1].reshape(x[0].shape)).abs()
    every = torch.ones_like(gap, dtype=torch.bool)
    return gap.sum() / _normalizer(c, every, x[0].shape[0], "BATCH_SIZE")


@layer("DiceCoefLoss")
def _dice(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    a, b = (each.reshape(x[0].shape[0], -1) for each in x)
    over = c.round((2 * a * b).sum(1)) + 1
    share = over / (c.round((a * a).sum(1)) + c.round((b * b).sum(1)) + 1)
    return c.round(1 - c.round(share)).mean()


@layer("SmoothL1Loss")
def _smooth(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    square = p.sigma**2
    gap = c.round(x[0] - x[1])
    if len(x) > 2:
        gap = gap * x[2].detach()
    loss = torch.where(gap.abs() < 1 / square, 0.5 * square * gap**2, gap.abs() - 0.5 / square)
    if len(x) > 3:
        loss = loss * x[3].detach()
    return c.round(loss).sum() / x[0].shape[0]


@layer("ContrastiveLoss")
def _contrastive(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    gap = c.round(x[0] - x[1]).reshape(x[0].shape[0], -1)
    square = c.round((gap**2).sum(1))
    similar = x[2].detach().flatten() != 0
    if p.legacy_version:
        apart = (p.margin - square).clamp(min=0)
    else:  # Caffe's slope is that of a distance which is kept off zero
        root = square.detach().sqrt()
        distance = root + (square - square.detach()) / (2 * (root + 1e-4))
        apart = c.round(p.margin - distance).clamp(min=0) ** 2
    return torch.where(similar, square, apart).sum() / (2 * x[0].shape[0])


@layer("CenterLoss")
def _center(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    flat = x[0].flatten(1) if x[0].dim() > 1 else x[0][:, None]
    label = x[1].detach().flatten().long()
    gap = c.round(flat - w[0].detach()[label])
    # What moves a center does not follow from the loss, and is not scaled by its weight.
    count = torch.bincount(label, minlength=len(w[0]))[:, None]
    moved = torch.zeros_like(w[0]).index_add(0, label, gap.detach())
    c.state.setdefault("moved", {})[c.layer.name] = -moved / (1 + count)
    return (gap**2).sum() / (2 * len(flat))
