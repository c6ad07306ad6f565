"""Owns the conversion of iterations to records and epochs: one epoch is all records once."""

from __future__ import annotations

from dataclasses import dataclass

from ..net import Net


@dataclass(frozen=True)
class Epochs:
    """The data set that a layer reads: its records, and how many of them an iteration takes."""

    layer: str
    count: int
    each: int

    def records(self, iterations: int) -> int:
        """The records that so many iterations take."""
        return iterations * self.each

    def epoch(self, iterations: int) -> float:
        """How often so many iterations take all records."""
        return self.records(iterations) / self.count


def epochs_of(net: Net, batches: int = 1) -> Epochs | None:
    """Those of the first layer that knows how many records it reads; None if there is no such.

    batches: how many an iteration takes, of all ranks.
    """
    for node in net.nodes:
        if node.layer.records and node.top:
            batch = node.top[0].shape[0]
            return Epochs(node.layer.title, node.layer.records, batch * batches)
    return None
