"""Images: files as pixels, pixels as images of Pillow's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..data.pictures.image import decode_content, read_content

if TYPE_CHECKING:
    from PIL.Image import Image


def load_image(path: str) -> np.ndarray:
    """The pixels of a file, uint8 (height, width, 3 or 1), red first."""
    image = decode_content(path, read_content(path), red_first=True)[:, :, :3]  # the rest is alpha
    return np.ascontiguousarray(image)


def to_image(planes: np.ndarray, mode: str | None = None) -> Image:
    """An image of Pillow's. planes: bytes (1, 3 or 4, height, width), blue first, then the
    alpha channel; mode: "L" or "LA" for images without colours."""
    from PIL import Image

    colours = planes[:1] if len(planes) < 3 or mode in ("L", "LA") else planes[2::-1]
    bands = [*colours, *planes[3:]]
    return Image.merge(
        mode or {1: "L", 3: "RGB", 4: "RGBA"}[len(bands)],
        [Image.fromarray(np.ascontiguousarray(band)) for band in bands],
    )
