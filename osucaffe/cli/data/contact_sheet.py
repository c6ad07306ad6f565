"""The contact sheet: a picture of many small images with their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...api.images import to_image

if TYPE_CHECKING:
    from PIL import Image

_CELL, _GAP, _LABEL, _LINE, _MARGIN, _TITLE = 112, 12, 22, 18, 24, 48
_PAPER, _INK, _FAINT = (255, 255, 255), (32, 32, 36), (96, 96, 104)


def draw_contact_sheet(
    images: Sequence[tuple[np.ndarray, int | str]], title: str, note: str
) -> Image.Image:
    """A picture of images (channels, height, width), blue first, with their labels, which may have
    several lines, and a title and a note above."""
    from PIL import Image, ImageDraw, ImageFont

    columns = min(len(images), max(4, math.ceil(math.sqrt(1.6 * len(images)))))
    rows = math.ceil(len(images) / columns)
    label_height = _LABEL + _LINE * max(str(label).count("\n") for _, label in images)
    width = max(columns, 4) * (_CELL + _GAP) - _GAP + 2 * _MARGIN
    height = rows * (_CELL + label_height + _GAP) - _GAP + 2 * _MARGIN + _TITLE
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((_MARGIN, _MARGIN - 6), title, _INK, ImageFont.load_default(18))
    draw.text((_MARGIN, _MARGIN + 18), note, _FAINT, ImageFont.load_default(13))
    font = ImageFont.load_default(14)
    for index, (values, label) in enumerate(images):
        row, column = divmod(index, columns)
        left = _MARGIN + column * (_CELL + _GAP)
        top = _MARGIN + _TITLE + row * (_CELL + label_height + _GAP)
        picture = _displayable(values)
        scale = _CELL / max(picture.size)
        size = [max(1, round(extent * scale)) for extent in picture.size]
        # Small images show their pixels, large ones are smoothed.
        way = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
        picture = picture.resize((size[0], size[1]), way)
        sheet.paste(picture, (left + (_CELL - size[0]) // 2, top + _CELL - size[1]))
        position = (left + _CELL / 2, top + _CELL + 4)
        draw.text(position, str(label), _INK, font, anchor="ma", align="center")
    return sheet


def _displayable(values: np.ndarray) -> Image.Image:
    if values.dtype != np.uint8:  # floats of any range
        low, high = float(values.min()), float(values.max())
        values = ((values - low) * (255 / ((high - low) or 1))).astype(np.uint8)
    return to_image(values[:3] if len(values) in (3, 4) else values[:1])
