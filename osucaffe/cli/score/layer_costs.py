"""Owns what each layer of a net costs, as `time` has measured it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...net import Net
    from .device_rates import Rates


@dataclass
class Cost:
    """One direction of a layer: milliseconds of each iteration, operations and bytes of one.

    served: what it computes, and what of the backend computes that.
    """

    times: list[float] = field(default_factory=list)
    flops: int = 0
    nbytes: int = 0
    served: list[tuple[str, str]] = field(default_factory=list)

    @property
    def milliseconds(self) -> float:
        import statistics

        return statistics.median(self.times) if self.times else 0.0

    def floor(self, rates: Rates) -> float:
        """Milliseconds that the device needs at least."""
        return 1e3 * max(self.flops / rates.flops, self.nbytes / rates.nbytes)


@dataclass
class Layer:
    """What one layer costs."""

    name: str
    type: str
    forward: Cost = field(default_factory=Cost)
    backward: Cost = field(default_factory=Cost)


def document(net: Net, layers: list[Layer], rates: Rates, whole: float) -> dict[str, Any]:
    """The results for scripts: milliseconds, operations and bytes."""
    from ..nets.memory import memory_of

    return {
        "name": net.name,
        "whole": whole,
        "layers": [
            {"name": each.name, "type": each.type}
            | {
                word: {
                    "milliseconds": cost.milliseconds,
                    "floor": cost.floor(rates),
                    "flops": cost.flops,
                    "bytes": cost.nbytes,
                    "by": [implementation for _, implementation in cost.served],
                }
                for word, cost in (("forward", each.forward), ("backward", each.backward))
            }
            for each in layers
        ],
        "rates": vars(rates),
        "memory": memory_of(net),
    }
