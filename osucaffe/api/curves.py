"""The curves of a run, in SVG: those of a report and of a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .tables import escape

# Okabe and Ito's colours, which colour-blind people can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 460, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 12, 40
_SMOOTHED = 20
"""Points of a training curve from which on it is smoothed, over as many parts of it."""


def panel(
    title: str,
    series: Mapping[str, Points],
    x_name: str = "iteration",
    *,
    log: str = "",
    decades: bool = False,
) -> str:
    """A panel with a line for each series (x, y), a legend and axes, that of x with this name. ""
    without a finite point. log: which axes are logarithmic, "x" (in powers of two) or "xy";
    decades: x are decimal logarithms."""
    shown = {
        name: [(x, y) for x, y in points if math.isfinite(y) and (y > 0 or "y" not in log)]
        for name, points in series.items()
    }
    every = [point for points in shown.values() for point in points]
    if not every:
        return ""
    xs, ys = zip(*every, strict=True)
    across = _log_ticks(xs, 2) if log else _ticks(xs)
    up = _log_ticks(ys, 10) if "y" in log else _ticks(ys)

    def place(value: float, ticks: Sequence[float], logarithmic: bool) -> float:
        """Where an axis has a value: 0 at its begin, 1 at its end."""
        scale = math.log if logarithmic else float
        first, last = scale(ticks[0]), scale(ticks[-1])
        return (scale(value) - first) / (last - first)

    def position(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + place(x, across, bool(log)) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - place(y, up, "y" in log) * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = []
    for y in up:
        _, height = position(across[0], y)
        parts.append(
            f'<path class="grid" d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}"/>'
            f'<text x="{_LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{_short(y)}</text>'
        )
    for x in across:
        left, _ = position(x, up[0])
        parts.append(
            f'<text x="{left:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
            f"{10**x if decades else x:g}</text>"
        )
    parts.append(
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">{escape(x_name)}</text>'
    )
    legend = []
    colours = COLOURS[:-1]  # the last, black, is not a colour on black
    for index, (name, points) in enumerate(shown.items()):
        if not points:
            continue
        colour = colours[index % len(colours)]
        dashes = ' stroke-dasharray="6 4"' if index >= len(colours) else ""
        lines: dict[str, Points] = {"": points}
        if name.startswith("train") and len(points) >= _SMOOTHED:
            lines = {' class="raw"': points, "": smooth(points)}
        for kind, line in lines.items():
            corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (position(*point) for point in line))
            parts.append(f'<polyline{kind} points="{corners}" stroke="{colour}"{dashes}/>')
        if lines[""] is points and len(points) < 40:
            parts.extend(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'
                for x, y in (position(*point) for point in points)
            )
        kind = "dashed" if dashes else "solid"
        mark = f'<i style="border-top-style:{kind};border-color:{colour}"></i>'
        legend.append(f"<span>{mark}{escape(name)}</span>")
    return (
        f'<figure><figcaption>{escape(title)} <span class="legend">{"".join(legend)}</span>'
        f'</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg></figure>'
    )


def smooth(points: Points) -> Points:
    """The mean of the points around each."""
    around = len(points) // _SMOOTHED
    parts = (points[max(0, at - around) : at + around + 1] for at in range(len(points)))
    means = (sum(y for _, y in part) / len(part) for part in parts)
    return [(x, mean) for (x, _), mean in zip(points, means, strict=True)]


def _ticks(values: Sequence[float]) -> list[float]:
    """Round numbers, four to nine, the first not above the values and the last not below them."""
    low, high = min(values), max(values)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    raw = (high - low) / 5
    unit: float = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _log_ticks(values: Sequence[float], base: int) -> list[float]:
    """Of a logarithmic axis: powers of the base (2), or of 10 also two and five times these where
    few do; the first not above the values, the last not below them."""
    low, high = min(values), max(max(values), min(values) * 1.01)
    powers = range(math.floor(math.log(low, base) - 1), math.ceil(math.log(high, base)) + 2)
    ticks: list[float] = []
    for steps in ((1, 2, 5), (1,)) if base == 10 else ((1,),):
        every = [step * float(base) ** power for power in powers for step in steps]
        first = max(tick for tick in every if tick <= low * 1.001)
        last = min(tick for tick in every if tick >= high * 0.999)
        ticks = [tick for tick in every if first <= tick <= last]
        if len(ticks) < 8:
            break
    return ticks


def _short(value: float) -> str:
    """A tick of an axis: 0.5, 2000, 20k."""
    return f"{value / 1e3:g}k" if value >= 1e4 else f"{value:g}"
