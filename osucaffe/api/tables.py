"""Tables of text, for terminals and as HTML for notebooks, and large numbers in them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from ..messages import one_line, printable


def escape(text: str) -> str:
    """Text as HTML shows it, control characters as escapes."""
    return html.escape(printable(text))


def table(align: str, *rows: Sequence[object]) -> list[str]:
    """The lines of a table, whose columns are as wide as their content. align: "<" or ">", left or
    right, for each column."""
    texts = [[one_line(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        ).rstrip()
        for row in texts
    ]


def html_table(align: str, *rows: Iterable[object], caption: str = "") -> str:
    """The same as HTML; the first row has the headings."""
    head, *body = [[html.escape(one_line(str(cell))) for cell in row] for row in rows]
    sides = ["right" if side == ">" else "left" for side in align]

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f'<{tag} style="text-align:{side}">{cell}</{tag}>'
            for cell, side in zip(cells, sides, strict=True)
        )

    lines = [f"<thead><tr>{line('th', head)}</tr></thead>"]
    lines += [f"<tr>{line('td', cells)}</tr>" for cells in body]
    title = f"<p>{html.escape(one_line(caption))}</p>" if caption else ""
    return f"{title}<table>{''.join(lines)}</table>"


def scaled(count: float, unit: str, prefixes: str = "MGT") -> str:
    """A large number: 1.23 GFLOP, 45.6 MB. prefixes: those to choose from."""
    powers = {prefix: 1e3 ** ("KMGT".index(prefix) + 1) for prefix in prefixes}
    prefix = next((prefix for prefix in reversed(prefixes) if powers[prefix] <= count), prefixes[0])
    return f"{count / powers[prefix]:.3g} {prefix}{unit}"
