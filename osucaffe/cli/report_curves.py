"""Owns the curves of a report: panels as SVG, drawn here so that a page needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from .plots import COLOURS

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 860, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 34


def panel(title: str, series: Mapping[str, Points]) -> str:
    """A panel with a line for each series (x, y), a legend and axes. "" without a finite point."""
    shown = {
        name: [(x, y) for x, y in points if math.isfinite(y)] for name, points in series.items()
    }
    shown = {name: points for name, points in shown.items() if points}
    if not shown:
        return ""
    every = [point for points in shown.values() for point in points]
    across, up = _ticks([x for x, _ in every]), _ticks([y for _, y in every])

    def place(x: float, y: float) -> tuple[float, float]:
        left, right = across[0], across[-1]
        low, high = up[0], up[-1]
        return (
            _LEFT + (x - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = []
    for y in up:
        _, height = place(across[0], y)
        parts.append(
            f'<path class="grid" d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}"/>'
            f'<text x="{_LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{y:g}</text>'
        )
    for x in across:
        left, _ = place(x, up[0])
        parts.append(
            f'<text x="{left:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{x:g}</text>'
        )
    legend = []
    for index, (name, points) in enumerate(shown.items()):
        colour = COLOURS[index % (len(COLOURS) - 1)]  # the last, black, is no colour on black
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{corners}" stroke="{colour}"/>')
        if len(points) < 40:
            parts.extend(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'
                for x, y in (place(*point) for point in points)
            )
        legend.append(f'<span><i style="background:{colour}"></i>{escape(name)}</span>')
    return (
        f'<figure><figcaption>{escape(title)} <span class="legend">{"".join(legend)}</span>'
        f'</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg></figure>'
    )


def _ticks(values: Sequence[float]) -> list[float]:
    """Round numbers, four to nine, the first not above the values and the last not below them."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    raw = (high - low) / 5
    unit: float = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]
