"""The insertion of Split layers: where a blob is used several times, each use gets its own
gradient, and the Split adds them up."""

from __future__ import annotations

from collections import Counter

from ...errors import UserError, listed
from ...proto import caffe_pb2, title
from .filter import with_layers

_Top = tuple[int, int]  # (layer, index of its top)


def insert_splits(net: caffe_pb2.NetParameter) -> caffe_pb2.NetParameter:
    """The net with a Split layer after every top that is used more than once.

    Layer and blob names are those that C++ Caffe gives them. A bottom that no earlier layer
    makes raises UserError.
    """
    producer: dict[str, _Top] = {}
    source: dict[tuple[int, int], _Top] = {}  # (layer, index of its bottom) -> its top
    uses: Counter[_Top] = Counter()
    weight: dict[_Top, float] = {}
    for i, layer in enumerate(net.layer):
        for j, name in enumerate(layer.bottom):
            if name not in producer:
                tops = listed(f'"{n}"' for n in producer) or "none"
                raise UserError(
                    f'{title(layer)}: no earlier layer makes its bottom "{name}"; blobs made so '
                    f"far: {tops}"
                )
            source[i, j] = producer[name]
            uses[producer[name]] += 1
        for j, name in enumerate(layer.top):
            producer[name] = (i, j)
        # A top that is part of the loss is used by the loss too.
        for j, value in enumerate(layer.loss_weight[: len(layer.top)]):
            if value:
                uses[i, j] += 1
                weight[i, j] = value

    result = with_layers(net)
    given: Counter[_Top] = Counter()
    for i, layer in enumerate(net.layer):
        copy = result.layer.add()
        copy.CopyFrom(layer)
        for j, name in enumerate(layer.bottom):
            top = source[i, j]
            if uses[top] > 1:
                copy.bottom[j] = _split_name(net, top, name, given[top])
                given[top] += 1
        for j, name in enumerate(layer.top):
            if uses[i, j] < 2:
                continue
            split = result.layer.add(name=_split_name(net, (i, j), name), type="Split")
            split.bottom.append(name)
            split.top.extend(_split_name(net, (i, j), name, k) for k in range(uses[i, j]))
            if (i, j) in weight:
                split.loss_weight.extend([weight[i, j]] + [0.0] * (uses[i, j] - 1))
                copy.loss_weight[j] = 0
                given[i, j] = 1
    return result


def _split_name(net: caffe_pb2.NetParameter, top: _Top, blob: str, index: int | None = None) -> str:
    name = f"{blob}_{net.layer[top[0]].name}_{top[1]}_split"
    return name if index is None else f"{name}_{index}"
