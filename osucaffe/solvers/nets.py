"""The choice of a solver's nets: the training net and the test nets that its fields name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..graph.prototxt.filter import filter_layers, net_state
from ..net import Net
from ..proto import caffe_pb2

ReadNet = Callable[[str], caffe_pb2.NetParameter]
"""Reads a net from a prototxt file."""

GENERIC = ("net", "net_param")
TRAIN = ("net", "net_param", "train_net", "train_net_param")


@dataclass(frozen=True)
class Choice:
    """A net and the state, besides its phase, that its layers are chosen by."""

    param: caffe_pb2.NetParameter
    level: int = 0
    stages: tuple[str, ...] = ()

    def chosen(self, phase: str) -> caffe_pb2.NetParameter:
        """A copy of the net's message with the layers that it has in a phase."""
        return filter_layers(self.param, net_state(self.param, phase, self.level, self.stages))

    def build(self, **settings: Any) -> Net:
        """The net. settings: see Net."""
        return Net(self.param, level=self.level, stages=self.stages, **settings)


def training_net(param: caffe_pb2.SolverParameter, file: str, read: ReadNet) -> Choice:
    """The training net. UserError unless exactly one field gives it."""
    given = [field for field in TRAIN if param.HasField(field)]
    if len(given) != 1:
        which = f"these do: {', '.join(given)}" if given else "none does"
        raise UserError(
            f"{file}: exactly one of {', '.join(TRAIN)} must give the training net, but {which}"
        )
    value = getattr(param, given[0])
    net = read(value) if isinstance(value, str) else value
    return _choice(net, param.train_state)


def testing_nets(param: caffe_pb2.SolverParameter, file: str, read: ReadNet) -> list[Choice]:
    """The test nets: each test_net_param, each test_net, then the net that serves for both.

    The length of test_iter is their number: the net that serves for both fills the rest, each time
    with the next test_state. UserError if the numbers do not match.
    """
    nets = list(param.test_net_param) + [read(name) for name in param.test_net]
    generic = [field for field in GENERIC if param.HasField(field)]
    specific, count = len(nets), len(param.test_iter)
    if generic and count > specific:
        value = getattr(param, generic[0])
        nets += [read(value) if isinstance(value, str) else value] * (count - specific)
    if len(nets) != count:
        raise UserError(
            f"{file}: test_iter has {count} values for {len(nets)} test nets; give one for each"
        )
    if param.test_state and len(param.test_state) != len(nets):
        raise UserError(
            f"{file}: test_state has {len(param.test_state)} entries for {len(nets)} test nets; "
            "give one for each or none"
        )
    if nets and param.test_interval <= 0:
        raise UserError(f"{file}: there are test nets, so test_interval must be positive")
    if any(batches < 0 for batches in param.test_iter):
        raise UserError(f"{file}: test_iter must not be negative; 0 tests nothing")
    states = list(param.test_state) or [caffe_pb2.NetState()] * len(nets)
    return [_choice(net, state) for net, state in zip(nets, states, strict=True)]


def _choice(net: caffe_pb2.NetParameter, state: caffe_pb2.NetState) -> Choice:
    return Choice(net, state.level, tuple(state.stage))
