"""The image files that commands read and write."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.sets.folder import images_in
from ..errors import UserError
from ..files import replacing

if TYPE_CHECKING:
    from PIL.Image import Image


def find_files(given: list[str]) -> Iterator[str]:
    """The named files, and those in the named folders (`images_in`)."""
    for name in given:
        yield from map(str, images_in(Path(name))) if Path(name).is_dir() else [name]


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
