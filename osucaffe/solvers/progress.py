"""Owns what a run goes on with besides its weights and their history: data, draws, losses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import UserError
from ..net import Net
from .scaling import LossScale


@dataclass
class NetProgress:
    """How far a net has come: its random step, and the record each of its data layers is at."""

    step: int
    positions: dict[str, int]

    @classmethod
    def of(cls, net: Net) -> NetProgress:
        positions = {
            layer.name: layer.position for layer in net.layers if hasattr(layer, "position")
        }
        return cls(net.random.step, positions)

    def part(self, before: NetProgress, done: int, taken: int) -> NetProgress:
        """Where the net would be had it come only `done` of the `taken` batches since `before`."""
        positions = {
            name: before.positions[name] + (position - before.positions[name]) * done // taken
            for name, position in self.positions.items()
        }
        return NetProgress(self.step, positions)

    def apply(self, net: Net) -> None:
        """Let the net go on from here. Layers that it did not have then keep their place."""
        net.random.step = self.step
        for layer in net.layers:
            if layer.name in self.positions and hasattr(layer, "position"):
                layer.position = self.positions[layer.name]


@dataclass
class Progress:
    """How far a run has come.

    nets: the training net, then the test nets. losses: those that the next display smooths over.
    loss_scale: see `LossScale.read`; None without loss scaling.
    """

    seed: int
    nets: list[NetProgress]
    losses: list[float]
    loss_scale: list[float] | None = None

    @classmethod
    def of(
        cls, seed: int, nets: Iterable[Net], losses: Iterable[float], scale: LossScale | None
    ) -> Progress:
        found = [NetProgress.of(net) for net in nets]
        return cls(seed, found, list(losses), scale.read() if scale else None)

    def apply(self, nets: Sequence[Net], scale: LossScale | None) -> None:
        """Let the nets, as many as there were, and the loss scale go on from here."""
        for net, reached in zip(nets, self.nets, strict=False):
            reached.apply(net)
        if scale and self.loss_scale:
            scale.write(self.loss_scale)

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes, path: Path) -> Progress:
        try:
            fields = json.loads(content)
            nets = [NetProgress(**each) for each in fields["nets"]]
            losses = [float(loss) for loss in fields["losses"]]
            return cls(int(fields["seed"]), nets, losses, fields.get("loss_scale"))
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{path}: what a resumed run needs cannot be read, the file is damaged; "
                "take an older snapshot"
            ) from None
