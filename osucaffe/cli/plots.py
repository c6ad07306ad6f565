"""The use of matplotlib by commands: its import, colours, and saving."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import replacing
from ..messages import printable


def pyplot() -> Any:
    """matplotlib.pyplot, drawing into files. UserError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise UserError('pictures need matplotlib: pip install "osucaffe[tools]"') from None
    matplotlib.use("Agg")
    matplotlib.rcParams["text.parse_math"] = False  # names of blobs are not formulas
    import matplotlib.pyplot as plt

    return plt


def draw_next_to(path: str, draw: Callable[[str], None]) -> str:
    """Draw a picture of a file's content, into the same name with .png. Returns a line to print."""
    try:
        pyplot()
    except UserError as error:
        return f"no picture of {path}: {error}"
    picture = str(Path(path).with_suffix(".png"))
    draw(picture)
    return f"wrote {picture}"


def save(figure: Any, path: str) -> None:
    """Write the picture, in the format of its suffix. UserError."""
    form = Path(path).suffix[1:]
    if not form:
        raise UserError(f"{path}: give the picture a suffix: .png, .svg or .pdf")
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_text(printable(text.get_text()))
    try:
        with replacing(path) as file:
            figure.savefig(file, format=form, dpi=130)
    except ValueError as error:  # of the format
        raise UserError(f"{path}: cannot write the picture: {error}") from None
