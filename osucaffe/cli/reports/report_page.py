"""The page of a report, a self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...api.tables import escape
from ..output import short
from ..score.predictions import Prediction, Predictions, percents

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
