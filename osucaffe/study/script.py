"""Scripts: the events of a rank in an iteration, of its plan and of its layers in their order.

Plans are those that training carries out (`parallel/plan.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..comm.algorithms import Operation
from ..parallel.config import ParallelConfig
from ..parallel.exchange import choose_exchange
from ..parallel.plan import Event, Plan
from .messages import Planner
from .sketch import Sketch


@dataclass(frozen=True)
class Compute:
    """A layer computes; direction: forward or backward."""

    direction: str
    layer: int


@dataclass(frozen=True)
class Ask:
    """A layer waits for an operation on that many elements."""

    operation: Operation
    elements: int


Script = list[Compute | Ask | Event]


class Ranks:
    """The ranks for which a net with split layers is made (`designs/split.py`). What the layers
    record are the operations themselves."""

    rank, has_all_to_all = 0, True
    all_gather, reduce_scatter = Operation.ALL_GATHER, Operation.REDUCE_SCATTER
    all_to_all = Operation.ALL_TO_ALL

    def __init__(self, planner: Planner) -> None:
        self.size, self.part = planner.size, planner.part


def write(plan: Plan, sketch: Sketch, passes: int = 1) -> Script:
    """The script of an iteration of that many passes, with others before it."""
    return [*_write(plan, sketch, passes)]


def _write(plan: Plan, sketch: Sketch, passes: int) -> Iterator[Compute | Ask | Event]:
    layers = range(len(sketch.layers))
    for number in range(passes):
        update = number == passes - 1
        one = plan.of_pass(accumulate=number > 0 and plan.accumulates, update=update)
        for layer in layers:
            yield from one.before.get(layer, ())
            yield from _turn(sketch, "forward", layer)
        yield from one.before.get(len(layers), ())
        for layer in reversed(layers):
            yield from _turn(sketch, "backward", layer)
            yield from one.after.get(layer, ())
        yield from one.then
        yield from one.afterwards


def _turn(sketch: Sketch, direction: str, layer: int) -> Iterator[Compute | Ask]:
    """The first of the operations that a layer asks for comes ahead of what it computes."""
    asked = [Ask(*each) for each in sketch.collectives.get((direction, layer), ())]
    yield from asked[:1]
    yield Compute(direction, layer)
    yield from asked[1:]


def plan_of(sketch: Sketch, config: ParallelConfig, planner: Planner, *, separable: bool) -> Plan:
    """The plan of rank 0 without servers. A rank that has nobody to talk to waits for nobody."""
    if planner.size == 1:
        config = replace(config, propagation="none", aggregation="blocking", local_steps=0)
    kind = choose_exchange(config)
    return kind.plan_of(sketch, config, planner, separable=separable, takes=config.reproducible)
