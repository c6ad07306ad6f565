"""The independent reference: a NetParameter in float64, with PyTorch's autograd.

For the conditioning of a net all is computed again with noise, relative to each value:
`Context.round` stands where float32 would round, in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from osucaffe.layer import layer_types, messages_of
from osucaffe.proto import LayerParameter, caffe_pb2

from . import losses  # noqa: F401 (which fills the table)
from .layers import LAYERS, Context


class Pass(NamedTuple):
    """What a forward pass (and its backward pass) came to. blobs: every top by name, as the last
    layer that works in it leaves it; gradients: by (layer, index), of owners of parameters; inputs:
    gradients of inputs; statistics: parameters after the pass."""

    blobs: dict[str, np.ndarray]
    gradients: dict[tuple[str, int], np.ndarray]
    inputs: dict[str, np.ndarray]
    statistics: dict[tuple[str, int], np.ndarray]


Weights = Mapping[tuple[str, int], np.ndarray]


def run(
    net: caffe_pb2.NetParameter,
    context: Context,
    weights: Weights,
    passes: Sequence[Mapping[str, np.ndarray]],
    owners: Mapping[tuple[str, int], tuple[str, int]],
    *,
    gradients: bool,
) -> list[Pass]:
    """Some passes, one after the other, each of these inputs. owners: of shared parameters."""
    leaves: dict[tuple[str, int], Tensor] = {}
    for key in sorted(set(owners.values())):
        values = torch.from_numpy(weights[key].astype(np.float64))
        fixed = context.round(values) if context.eps else values
        leaves[key] = fixed.clone().requires_grad_(gradients)
    active = [each for each in net.layer if _is_in(each, context.phase)]
    results = []
    for inputs in passes:
        blobs: dict[str, Tensor] = {}
        for name, array in inputs.items():
            values = torch.from_numpy(array.astype(np.float64))
            is_real = name.partition("_")[0] in ("real", "unit") or "_" not in name
            blobs[name] = context.round(values).requires_grad_(gradients) if is_real else values
        sources = dict(blobs)
        total = torch.zeros(())
        context.state["moved"] = {}
        with torch.set_grad_enabled(gradients):
            for each in active:
                if each.type == "Input":
                    continue
                own = []
                while (each.name, len(own)) in owners:
                    own.append(leaves[owners[each.name, len(own)]])
                bottoms = [blobs[name] for name in each.bottom]
                context.layer = each
                fields = messages_of(layer_types()[each.type])
                settings = getattr(each, fields[0]) if fields else None
                tops = LAYERS[each.type](context, settings, bottoms, own)
                tops = [tops] if isinstance(tops, Tensor) else tops
                names = list(each.top) or [each.name][: len(tops)]
                for index, (name, top) in enumerate(zip(names, tops, strict=True)):
                    blobs[name] = top = context.round(top)
                    total = total + _weight(each, index) * top.sum()
        found: dict[tuple[str, int], np.ndarray] = {}
        given: dict[str, np.ndarray] = {}
        if gradients:
            wanted = [*leaves.items(), *sources.items()]
            wanted = [(key, leaf) for key, leaf in wanted if leaf.requires_grad]
            slopes: Any = [None] * len(wanted)
            if total.requires_grad:
                slopes = torch.autograd.grad(total, [leaf for _, leaf in wanted], allow_unused=True)
            for (key, leaf), slope in zip(wanted, slopes, strict=True):
                slope = torch.zeros_like(leaf) if slope is None else slope
                target: Any = given if isinstance(key, str) else found
                target[key] = slope.numpy()
            for name, moved in context.state["moved"].items():
                found[owners[name, 0]] = moved.numpy()
        context.step += 1
        results.append(
            Pass(
                {name: blob.detach().numpy() for name, blob in blobs.items()},
                found,
                given,
                {key: leaf.detach().numpy().copy() for key, leaf in leaves.items()},
            )
        )
    return results


def _is_in(each: LayerParameter, phase: str) -> bool:
    phases = [caffe_pb2.Phase.Name(rule.phase) for rule in each.include]
    return not phases or phase in phases


def _weight(each: LayerParameter, index: int) -> float:
    if each.loss_weight:
        return each.loss_weight[index]
    return float(each.type.endswith("Loss") or each.type == "SoftmaxWithLoss") * (index == 0)
