"""Owns the image files that commands read and write."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.pictures.image import decode_content, read_content
from ..data.sets.folder import images_in
from ..errors import UserError
from ..files import replacing

if TYPE_CHECKING:
    from PIL.Image import Image


def find_files(given: list[str]) -> Iterator[str]:
    """The named files, and those in the named folders (`images_in`)."""
    for name in given:
        yield from map(str, images_in(Path(name))) if Path(name).is_dir() else [name]


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


def save_image(image: Image, path: str | Path, kind: str | None = None, **options: Any) -> None:
    """Write an image in a format of Pillow's, or that of the file's suffix. UserError if that is
    impossible: WebP has at most 16,383 pixels to a side."""
    from PIL import Image

    suffix = Path(path).suffix
    try:
        kind = kind or Image.registered_extensions().get(suffix.lower())
        if kind is None:
            raise ValueError(f"unknown file extension: {suffix}")
        with replacing(path) as file:
            image.save(file, kind, **options)
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: cannot write the picture: {error}") from None


def png(image: Image) -> bytes:
    """The content of a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
