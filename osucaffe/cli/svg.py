"""Owns line charts as SVG text, which goes into a page as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which those who see few colours tell apart."""
_WIDTH, _HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 36


def line_chart(series: Mapping[str, Points], title: str, below: str = "iteration") -> str:
    """A chart of these series; what is not finite is left out. The names stand in a legend under
    it. Empty where there is no point."""
    finite = {
        name: [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
        for name, points in series.items()
    }
    every = [point for points in finite.values() for point in points]
    if not every:
        return ""
    xs, ys = (ticks(min(values), max(values)) for values in zip(*every, strict=True))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - xs[0]) / (xs[-1] - xs[0])
        up = (y - ys[0]) / (ys[-1] - ys[0])
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    for y in ys:
        left, at = place(xs[0], y)
        parts.append(
            f'<path class="grid" d="M{left:.1f} {at:.1f}H{_WIDTH - _RIGHT}"/>'
            f'<text x="{left - 6:.1f}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>'
        )
    for x in xs:
        at, _ = place(x, ys[0])
        parts.append(
            f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{x:g}</text>'
        )
    parts.append(
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(below)}</text>'
    )
    for index, points in enumerate(finite.values()):
        line = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{line}"/>')
        if len(points) < 40:
            for point in points:
                x, y = place(*point)
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    parts.append("</svg>")
    legend = "".join(
        f'<span><i style="background:{COLOURS[index % len(COLOURS)]}"></i>{escape(name)}</span>'
        for index, name in enumerate(finite)
    )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>{''.join(parts)}"
        f'<p class="legend">{legend}</p></figure>'
    )


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from below `low` to above `high`, at least two of them."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / most))
    step = next(step * factor for factor in (1, 2, 5, 10, 20) if span / (step * factor) <= most)
    first, last = math.floor(low / step), math.ceil(high / step)
    if first == last:
        last += 1
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]
