"""Owns the page of `report`: one HTML file that fetches nothing."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

import numpy as np

_MOST = 40
"""Classes whose confusions fit in a table; of more, the most frequent confusions are listed."""

_STYLE = """
:root{color-scheme:light dark;--line:#8886;--soft:#8882}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid var(--line)}
svg{width:100%;height:auto}svg text{font-size:12px;fill:currentColor}.grid{stroke:var(--line)}
figure{margin:1rem 0}figcaption{font-weight:600}.legend span{margin-right:1.2rem}
.legend i{display:inline-block;width:.8rem;height:.8rem;margin-right:.4rem;border-radius:2px}
table{border-collapse:collapse;font-size:13px}td,th{padding:.15rem .5rem;text-align:right}
th:first-child,td:first-child{text-align:left}.wide{overflow-x:auto}
.matrix td{border:1px solid var(--line);min-width:1.6rem}.matrix .up{writing-mode:vertical-rl}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.5rem,1fr));gap:.8rem}
.card{border:1px solid var(--line);border-radius:6px;padding:.5rem;font-size:13px}
.card img{width:100%;image-rendering:auto;display:block;margin-bottom:.3rem}
.bar{display:inline-block;height:.7rem;background:#0072B2}.bar.back{background:#D55E00}
pre{background:var(--soft);padding:.8rem;overflow-x:auto;font-size:12px}
"""


def page(title: str, sections: Sequence[tuple[str, str]]) -> str:
    """The file: sections are headings with their HTML; those without any are left out."""
    body = "".join(f"<h2>{escape(name)}</h2>\n{html}\n" for name, html in sections if html)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{body}</body></html>\n"
    )


def lines(texts: Sequence[str]) -> str:
    """A list."""
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def files(texts: Sequence[tuple[str, str]]) -> str:
    """Files to unfold."""
    return "".join(
        f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"
        for name, text in texts
    )


def picture(pixels: np.ndarray) -> str:
    """An image, uint8 (height, width, 1 or 3), in the page itself. (simplejpeg is always there.)"""
    import simplejpeg

    space = "GRAY" if pixels.shape[2] == 1 else "RGB"
    jpeg = simplejpeg.encode_jpeg(pixels, quality=90, colorspace=space)
    return f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}">'


def cards(shown: Sequence[tuple[np.ndarray, str, str]]) -> str:
    """Pictures, each with a bold line and another."""
    return '<div class="cards">' + "".join(
        f'<div class="card">{picture(pixels)}<b>{escape(first)}</b><br>{escape(second)}</div>'
        for pixels, first, second in shown
    ) + "</div>"  # fmt: skip


def matrix(confusion: np.ndarray, names: Sequence[str]) -> str:
    """Rows are true labels, columns predicted ones; the darker, the larger a row's share."""
    if len(names) > _MOST:
        return _confused(confusion, names)
    totals = np.maximum(confusion.sum(axis=1), 1)
    head = "".join(f'<th class="up">{escape(name)}</th>' for name in names)
    rows = []
    for index, name in enumerate(names):
        cells = "".join(
            f'<td style="background:rgba({"0,158,115" if column == index else "213,94,0"},'
            f'{0.75 * count / totals[index]:.2f})">{count or ""}</td>'
            for column, count in enumerate(confusion[index].tolist())
        )
        share = confusion[index, index] / totals[index]
        rows.append(f"<tr><th>{escape(name)}</th>{cells}<td>{share:.1%}</td></tr>")
    return (
        "<p>Rows: true labels; columns: predicted ones; at the end the share that is right.</p>"
        f'<div class="wide"><table class="matrix"><tr><th></th>{head}<th>right</th></tr>'
        f"{''.join(rows)}</table></div>"
    )


def _confused(confusion: np.ndarray, names: Sequence[str]) -> str:
    wrong = confusion * (1 - np.eye(len(confusion), dtype=int))
    order = np.argsort(-wrong, axis=None)[:_MOST]
    pairs = [divmod(int(place), len(confusion)) for place in order]
    rows = "".join(
        f"<tr><td>{escape(names[true])}</td><td>{escape(names[taken])}</td>"
        f"<td>{wrong[true, taken]}</td></tr>"
        for true, taken in pairs
        if wrong[true, taken]
    )
    return f"<table><tr><th>true</th><th>predicted</th><th>times</th></tr>{rows}</table>"


def times(rows: Sequence[tuple[str, str, float, float]]) -> str:
    """Layers: name, type, milliseconds forward and backward, with bars."""
    longest = max((forward + backward for _, _, forward, backward in rows), default=0) or 1
    body = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(kind)}</td><td>{forward:.3g}</td>"
        f'<td>{backward:.3g}</td><td style="text-align:left;width:40%">'
        f'<span class="bar" style="width:{100 * forward / longest:.1f}%"></span>'
        f'<span class="bar back" style="width:{100 * backward / longest:.1f}%"></span></td></tr>'
        for name, kind, forward, backward in rows
    )
    head = "<th>layer</th><th>type</th><th>forward ms</th><th>backward ms</th><th></th>"
    return f'<div class="wide"><table style="width:100%"><tr>{head}</tr>{body}</table></div>'
