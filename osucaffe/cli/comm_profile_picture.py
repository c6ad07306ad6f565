"""Owns the picture of a communication profile: bars by size of messages, and one iteration."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .plots import COLOURS, pyplot, save

if TYPE_CHECKING:
    from ..parallel.profiled import Records


def draw(found: dict[str, Any], rank: Records, path: str) -> None:
    """found: what `summarize` gave. rank: of which the last iteration is shown."""
    rows = len(found["operations"])
    figure, (bars, line) = pyplot().subplots(
        *(2, 1), figsize=(10, 4.5 + 0.5 * rows), height_ratios=(1 + 0.5 * rows, 3),
        layout="constrained",
    )  # fmt: skip
    _draw_sizes(bars, found)
    _draw_timeline(line, rank)
    save(figure, path)


def _draw_sizes(axes: Any, found: dict[str, Any]) -> None:
    """A bar for each operation and size: hidden and exposed, and the slowest rank's share."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 3)
    for row in found["operations"]:
        total = sums[f"{row['operation']}, {row['size']}\n{row['algorithm']}, {row['level']}"]
        for index, name in enumerate(("hidden_ms", "exposed_ms", "slowest_ms")):
            total[index] += row[name]
    labels = list(sums)
    hidden, exposed, slowest = zip(*sums.values(), strict=True) if sums else ((), (), ())
    places = range(len(labels))
    above, below = ([each + side for each in places] for side in (-0.2, 0.2))
    axes.barh(above, hidden, 0.38, label="beside computation", color=COLOURS[2])
    axes.barh(above, exposed, 0.38, left=hidden, label="exposed", color=COLOURS[1])
    axes.barh(below, slowest, 0.38, label="of it until the slowest rank came", color=COLOURS[4])
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("ms an iteration")
    axes.set_title(f"{found['ranks']} ranks, {found['wall_ms']:.2f} ms an iteration")
    axes.legend(fontsize=8)


def _draw_timeline(axes: Any, rank: Records) -> None:
    """The last iteration of a rank: its passes, what travelled, what it waited for."""
    from ..parallel.profile_report import format_size, operations_in

    last = next(each for each in reversed(rank.passes) if each.update)
    cuts = (last.begin, last.forward, last.middle, last.backward, last.end)
    names = ("data", "forward", "backward", "update")

    def bar(
        track: int, begin: float, end: float, colour: str, label: str = "", ink: str = "black"
    ) -> None:
        start, width = (begin - last.begin) * 1e3, (end - begin) * 1e3
        axes.broken_barh([(start, width)], (track - 0.4, 0.8), color=colour, edgecolor="white")
        if label and end - begin > 0.09 * (last.end - last.begin):
            middle = start + width / 2
            axes.text(middle, track, label, ha="center", va="center", fontsize=8, color=ink)

    for name, begin, end, colour in zip(
        names, cuts, cuts[1:], (COLOURS[3], COLOURS[5], COLOURS[0], COLOURS[4]), strict=False
    ):
        bar(2, begin, end, colour, name, "white" if name == "backward" else "black")
    for operation in operations_in(rank, last):
        for message in operation.messages:
            label = f"{message.operation}\n{format_size(message.nbytes)}"
            bar(1, message.begun, message.ended, COLOURS[2], label, "white")
        for wait in operation.waits:
            bar(0, *wait, COLOURS[1])
    axes.set_yticks(range(3), ["waiting", "travelling", "passes"])
    axes.set_xlabel(f"ms of the last iteration of rank {rank.rank}")
