"""`osucaffe get_image_size`: the sizes of a list's images, as SSD's nets are told them."""

from __future__ import annotations

from pathlib import Path

from ...data.pictures.image import read_image
from ...data.streams.image_list import read_entries, read_list
from ...errors import UserError
from ...files import write_bytes
from .options import GetImageSize


def run(options: GetImageSize) -> None:
    """Write a line NAME HEIGHT WIDTH for each image."""
    meaning = "the names of an image and of its annotation, without blanks in them"
    names = read_entries(options.list, "images", "IMAGE ANNOTATION", meaning, _first)
    numbers = dict(read_list(options.name_id_file)) if options.name_id_file else None
    lines = []
    for name in names:
        height, width, _ = read_image(str(Path(options.root) / name)).shape
        called = Path(name).stem
        if numbers is not None and called not in numbers:
            raise UserError(
                f"{options.name_id_file} has no number for {called}, an image of the list"
            )
        lines.append(f"{called if numbers is None else numbers[called]} {height} {width}\n")
    write_bytes(options.output, "".join(lines).encode())
    print(f"{options.output}: {len(lines):,} images")


def _first(line: str) -> str:
    name, _ = line.split()
    return name
