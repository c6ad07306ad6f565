"""Owns the picture of a prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...predict.cluster import Cluster
from ...predict.iteration import Prediction
from .. import plots

WIDTHS = 7.0, 4.5, 2.8, 1.6
"""Of the lines, the fastest design's first: the next ones lie on it, and it shows beside them."""


def draw(cluster: Cluster, found: Sequence[Prediction], path: str) -> None:
    """Images a second and efficiency by ranks: a line for each design, and its band."""
    figure, (images, efficiency) = plots.pyplot().subplots(
        1, 2, figsize=(11, 4.5), layout="constrained"
    )
    ranks = sorted({each.ranks for each in found})
    lines = sorted(_lines(found), key=lambda line: -line[1][-1].images)
    for number, (design, points) in enumerate(lines):
        colour = plots.COLOURS[number % len(plots.COLOURS)]
        width = WIDTHS[min(number, len(WIDTHS) - 1)]
        at = [each.ranks for each in points]
        for axes, name, unit in (images, "images", 1), (efficiency, "efficiency", 100):
            values = [unit * getattr(each, name) for each in points]
            axes.plot(
                at, values, "o-", color=colour, linewidth=width, markersize=width + 2, label=design
            )
            bounds = [[each.high for each in points], [each.low for each in points]]
            worst, best = (
                [
                    value * each.ms / ms
                    for value, each, ms in zip(values, points, bound, strict=True)
                ]
                for bound in bounds
            )
            axes.fill_between(at, worst, best, color=colour, alpha=0.12, linewidth=0)
    rate = max(each.images / each.ranks / each.efficiency for each in found if each.efficiency)
    images.plot(ranks, [rate * each for each in ranks], ":", color="gray", label="perfect")
    images.set_yscale("log")
    images.yaxis.set_major_formatter("{x:,.0f}")
    efficiency.set_ylim(0, 105)
    efficiency.yaxis.set_major_formatter("{x:.0f} %")
    for axes, title in (images, "images a second"), (efficiency, "efficiency"):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ranks, [str(each) for each in ranks])
        axes.set_xlabel("ranks")
        axes.set_title(title)
        axes.grid(color="0.9")
        axes.set_axisbelow(True)
    images.legend(title="the fastest first")
    figure.suptitle(f"Predicted: {cluster.name}")
    plots.save(figure, path)


def _lines(found: Sequence[Prediction]) -> Iterator[tuple[str, list[Prediction]]]:
    alone = [each for each in found if each.ranks == 1]
    for design in dict.fromkeys(each.design for each in found if each.ranks > 1):
        yield design, alone + [each for each in found if each.design == design]
