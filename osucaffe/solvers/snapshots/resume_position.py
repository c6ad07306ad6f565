"""The position from which a run resumes: the records that its data layers have read, random
numbers, recent losses. (Weights and history are stored elsewhere in a snapshot.)"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...graph.parameters import by_name
from ...layers.reading.feed import Feed
from ...net import Net
from ...parsing import as_int, from_json
from ..update.loss_scaling import LossScale


def _count(value: object) -> int:
    return as_int(value, -(1 << 63), (1 << 64) - 1)


@dataclass
class NetPosition:
    """The position of a net: its random step, and the record that each of its data layers is at:
    by name, for each layer of that name in order."""

    step: int
    positions: dict[str, list[int]]

    @classmethod
    def of(cls, net: Net) -> NetPosition:
        positions = {
            name: [reader.position for reader in readers] for name, readers in _readers(net).items()
        }
        return cls(net.random.step, positions)

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> NetPosition:
        positions = fields["positions"].items()
        return cls(
            _count(fields["step"]), {name: list(map(_count, row)) for name, row in positions}
        )

    def part(self, before: NetPosition, done: int, total: int) -> NetPosition:
        """The position after only `done` of the `total` batches since `before`."""
        positions = {
            name: [
                old + (new - old) * done // total
                for old, new in zip(before.positions[name], reached, strict=True)
            ]
            for name, reached in self.positions.items()
        }
        return NetPosition(self.step, positions)

    def apply(self, net: Net) -> None:
        """Move the net to this position. Layers that it did not have then stay where they are."""
        net.random.step = self.step
        for name, readers in _readers(net).items():
            for reader, position in zip(readers, self.positions.get(name, ()), strict=False):
                reader.position = position


def _readers(net: Net) -> dict[str, list[Feed]]:
    """The layers that read data, by name."""
    return by_name(layer for layer in net.layers if isinstance(layer, Feed))


@dataclass
class RunPosition:
    """The position of a run.

    nets: the training net, then the test nets. losses: those that the next display averages.
    loss_scale: see `LossScale.read`; None without loss scaling. plateau: see `Policy.best`; None
    with other policies.
    """

    seed: int
    nets: list[NetPosition]
    losses: list[float]
    loss_scale: list[float] | None = None
    plateau: list[float] | None = None

    @classmethod
    def of(
        cls,
        seed: int,
        nets: Iterable[Net],
        losses: Iterable[float],
        scale: LossScale | None,
        plateau: list[float] | None,
    ) -> RunPosition:
        positions = [NetPosition.of(net) for net in nets]
        return cls(seed, positions, list(losses), scale.read() if scale else None, plateau)

    def apply(self, nets: Sequence[Net], scale: LossScale | None) -> None:
        """Move the nets, as many as there were, and the loss scale to this position."""
        for net, reached in zip(nets, self.nets, strict=False):
            reached.apply(net)
        if scale and self.loss_scale:
            scale.write(self.loss_scale)

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes, path: Path) -> RunPosition:
        try:
            fields = from_json(content)
            nets = [NetPosition.decode(net) for net in fields["nets"]]
            losses = [float(loss) for loss in fields["losses"]]
            others = fields.get("loss_scale"), fields.get("plateau")
            return cls(_count(fields["seed"]), nets, losses, *others)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"{path}: what a resumed run needs cannot be read, the file is damaged; "
                "take an older snapshot"
            ) from None
