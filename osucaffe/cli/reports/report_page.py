"""Owns the page of a report, a self-contained HTML file, and its curves in SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence

from ...messages import printable
from ..output import short
from ..plots import COLOURS
from ..score.predictions import Prediction, Predictions, percents


def escape(text: str) -> str:
    """Text as HTML shows it, control characters as escapes."""
    return html.escape(printable(text))


_STYLE = """
:root { color-scheme: light dark; --line: #8884; --quiet: #808080; --mark: 0,114,178; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 980px; margin: 2em auto; padding: 0 1em;
  overflow-wrap: anywhere; }
h1 { font-size: 1.6em; margin-bottom: 0; } h2 { font-size: 1.15em; margin: 2em 0 .6em; }
.quiet { color: var(--quiet); }
figure { margin: 0 1em 1em 0; display: inline-block; width: 460px; max-width: 100%; }
svg { width: 100%; height: auto; } svg text { font-size: 13px; fill: currentColor; }
.grid { stroke: var(--line); } polyline { fill: none; stroke-width: 2; }
polyline.raw { opacity: .5; stroke-width: 1; }
.legend { color: var(--quiet); font-size: .9em; } .legend span { margin-left: 1em;
  display: inline-block; }
.legend i { display: inline-block; width: 14px; border-top-width: 3px; vertical-align: middle;
  margin-right: 5px; }
table { border-collapse: collapse; font-size: .92em; } .wide { overflow-x: auto; }
th, td { padding: 3px 9px; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } .confusion td { text-align: center; }
.confusion td:first-child { text-align: left; white-space: nowrap; }
.confusion th { writing-mode: vertical-rl; transform: rotate(180deg); padding: 9px 3px;
  border: 0; font-weight: normal; white-space: nowrap; }
.facts td { text-align: left; border: 0; vertical-align: top; } th, td { overflow-wrap: normal; }
.facts td + td { overflow-wrap: anywhere; }
.cards { display: flex; flex-wrap: wrap; gap: 14px; }
.card { width: 128px; font-size: .82em; line-height: 1.35; overflow-wrap: anywhere; }
.card img { width: 128px; height: 128px; object-fit: contain; background: #8882;
  image-rendering: pixelated; display: block; margin-bottom: 4px; }
.big { font-size: 2em; font-weight: 600; margin-right: .3em; }
pre { background: #8881; padding: 1em; overflow-x: auto; font-size: .85em; }
@media (max-width: 600px) { th, td { padding: 3px 4px; font-size: 12px; }
  .card, .card img { width: 104px; } .card img { height: 104px; } }
"""


def page(title: str, subtitle: str, sections: Iterable[tuple[str, str]]) -> str:
    """The whole file. sections: (heading, HTML); those without content are left out."""
    body = "".join(f"<h2>{escape(name)}</h2>{text}" for name, text in sections if text)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="quiet">{escape(subtitle)}</p>{body}</body></html>\n'
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of text and numbers."""
    head = "".join(f"<th>{escape(head)}</th>" for head in heads)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{lines}</table></div>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A list of names and values; "" without any."""
    lines = "".join(
        f'<tr><td class="quiet">{escape(name)}</td><td>{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f'<table class="facts">{lines}</table>' if lines else ""


def code(text: str) -> str:
    """Text as it stands in a file."""
    return f"<pre>{escape(text.strip())}</pre>"


def results(predictions: Predictions, names: Sequence[str], most: int = 25) -> str:
    """The accuracy, and the confusion matrix; for more than `most` classes, the pairs that
    are confused most often."""
    text = f'<p><span class="big">{predictions.accuracy:.2%}</span>'
    text += f"correct: {predictions.right:,} of {predictions.total:,} records "
    text += f"(95 % confidence: {percents(predictions.interval)})</p>"
    if len(names) > most:
        return text + _confused(predictions, names, most)
    rows = []
    for label, counts in enumerate(predictions.confusion):
        of_class = max(1, int(counts.sum()))
        cells = "".join(
            f'<td style="background:rgba(var(--mark),{0.85 * count / of_class:.2f})">'
            f"{count or ''}</td>"
            for count in counts
        )
        part = f"{counts[label] / of_class:.1%}"
        rows.append(f"<tr><td>{escape(names[label])}</td>{cells}<td>{part}</td></tr>")
    head = "".join(f"<th>{escape(short(name, 12))}</th>" for name in names)
    return (
        f'{text}<p class="quiet">Rows are true classes, columns are predictions; the last column '
        'is the share that is correct.</p><div class="wide"><table class="confusion"><tr>'
        f"<th></th>{head}<th>correct</th></tr>{''.join(rows)}</table></div>"
    )


def _confused(predictions: Predictions, names: Sequence[str], most: int) -> str:
    pairs = [
        (int(count), names[label], names[predicted])
        for label, counts in enumerate(predictions.confusion)
        for predicted, count in enumerate(counts)
        if label != predicted and count
    ]
    pairs.sort(key=lambda pair: -pair[0])
    heads = ("class", "predicted", "records")
    return table(heads, [(label, predicted, count) for count, label, predicted in pairs[:most]])


def cards(predictions: Iterable[Prediction], names: Sequence[str]) -> str:
    """Pictures of records with their classes and predictions."""
    parts = []
    for one in predictions:
        image = f'<img alt="" src="data:image/png;base64,{one.picture}">' if one.picture else ""
        text = f"<b>{escape(names[one.label])}</b> {one.of_label:.1%}"
        if one.predicted != one.label:
            text += f"<br>predicted: <b>{escape(names[one.predicted])}</b> {one.probability:.1%}"
        text += f'<br><span class="quiet">{escape(one.file)}</span>' if one.file else ""
        parts.append(f'<div class="card">{image}{text}</div>')
    return f'<div class="cards">{"".join(parts)}</div>' if parts else ""


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
    colours = COLOURS[:-1]  # the last, black, is no colour on black
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
