"""The filter of layers: those that a net has in a phase, at a level, in given stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...errors import UserError
from ...proto import caffe_pb2, title


def net_state(
    net: caffe_pb2.NetParameter, phase: str, level: int = 0, stages: Iterable[str] = ()
) -> caffe_pb2.NetState:
    """The net's own state with these settings on top."""
    state = caffe_pb2.NetState()
    state.CopyFrom(net.state)
    state.phase = getattr(caffe_pb2, phase)
    state.level = level or state.level
    state.stage.extend(stage for stage in stages if stage not in state.stage)
    return state


def filter_layers(net: caffe_pb2.NetParameter, state: caffe_pb2.NetState) -> caffe_pb2.NetParameter:
    """The net without the layers that their include and exclude rules leave out."""
    filtered = with_layers(net, [layer for layer in net.layer if _is_included(layer, state)])
    filtered.state.CopyFrom(state)
    return filtered


def with_layers(
    net: caffe_pb2.NetParameter, layers: Sequence[caffe_pb2.LayerParameter] = ()
) -> caffe_pb2.NetParameter:
    """The net with copies of these layers instead of its own."""
    other = caffe_pb2.NetParameter()
    other.CopyFrom(net)
    del other.layer[:]
    other.layer.extend(layers)
    return other


def _is_included(layer: caffe_pb2.LayerParameter, state: caffe_pb2.NetState) -> bool:
    if layer.include and layer.exclude:
        raise UserError(f"{title(layer)}: give include rules or exclude rules, not both")
    if layer.include:
        return any(_matches(rule, state) for rule in layer.include)
    return not any(_matches(rule, state) for rule in layer.exclude)


def _matches(rule: caffe_pb2.NetStateRule, state: caffe_pb2.NetState) -> bool:
    stages = set(state.stage)
    return (
        (not rule.HasField("phase") or rule.phase == state.phase)
        and (not rule.HasField("min_level") or state.level >= rule.min_level)
        and (not rule.HasField("max_level") or state.level <= rule.max_level)
        and stages.issuperset(rule.stage)
        and stages.isdisjoint(rule.not_stage)
    )
