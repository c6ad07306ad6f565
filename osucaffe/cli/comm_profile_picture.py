"""Owns the picture of a communication profile: bars by size of messages, and one iteration."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .plots import COLOURS, pyplot, save

if TYPE_CHECKING:
    from ..parallel.profiled import Records


def draw(found: dict[str, Any], rank: Records, path: str) -> None:
    """found: what `summarize` gave. rank: of which the last iteration is shown."""
    figure, (bars, line) = pyplot().subplots(2, figsize=(10, 7), layout="constrained")
    _draw_sizes(bars, found)
    _draw_timeline(line, rank)
    save(figure, path)


def _draw_sizes(axes: Any, found: dict[str, Any]) -> None:
    """A bar for each operation and size: hidden and exposed, and the slowest rank's share."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 3)
    for row in found["operations"]:
        total = sums[f"{row['operation']}\n{row['algorithm']}, {row['level']}\n{row['size']}"]
        for index, name in enumerate(("hidden_ms", "exposed_ms", "slowest_ms")):
            total[index] += row[name]
    labels = list(sums)
    hidden, exposed, slowest = zip(*sums.values(), strict=True) if sums else ((), (), ())
    places = range(len(labels))
    left, right = ([each + side for each in places] for side in (-0.2, 0.2))
    axes.bar(left, hidden, 0.38, label="beside computation", color=COLOURS[2])
    axes.bar(left, exposed, 0.38, bottom=hidden, label="exposed", color=COLOURS[1])
    axes.bar(right, slowest, 0.38, label="of it until the slowest rank came", color=COLOURS[4])
    axes.set_xticks(places, labels, fontsize=7, rotation=30, ha="right")
    axes.set_ylabel("ms an iteration")
    axes.set_title(f"{found['ranks']} ranks, {found['wall_ms']:.2f} ms an iteration")
    axes.legend(fontsize=8)


def _draw_timeline(axes: Any, rank: Records) -> None:
    """The last iteration of a rank: its passes, what travelled, what it waited for."""
    from ..parallel.profile_report import operations_in

    last = next(each for each in reversed(rank.passes) if each.update)
    cuts = (last.begin, last.forward, last.middle, last.backward, last.end)
    names = ("data", "forward", "backward", "update")

    def bar(track: int, begin: float, end: float, colour: str, label: str = "") -> None:
        start, width = (begin - last.begin) * 1e3, (end - begin) * 1e3
        axes.broken_barh([(start, width)], (track - 0.4, 0.8), color=colour, edgecolor="white")
        if label and end - begin > 0.06 * (last.end - last.begin):
            axes.text(start + width / 2, track, label, ha="center", va="center", fontsize=8)

    for name, begin, end, colour in zip(
        names, cuts, cuts[1:], (COLOURS[3], COLOURS[5], COLOURS[0], COLOURS[4]), strict=False
    ):
        bar(2, begin, end, colour, name)
    for operation in operations_in(rank, last):
        for message in operation.messages:
            bar(1, message.begun, message.ended, COLOURS[2])
        for wait in operation.waits:
            bar(0, *wait, COLOURS[1])
    axes.set_yticks(range(3), ["waiting", "travelling", "passes"])
    axes.set_xlabel(f"ms of the last iteration of rank {rank.rank}")
