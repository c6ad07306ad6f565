"""The files of `osucaffe upscale`: finding, reading and writing them."""

from __future__ import annotations

import dataclasses
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...api.images import to_image
from ...cli.images import find_files, save_image
from ...cli.output import make_folder
from ...data.pictures.bicubic import enlarge as interpolate
from ...data.pictures.image import decode_content
from ...errors import UserError
from ...files import read_bytes
from .tiling import Enlarger

FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
"""The formats that can be written, by suffix."""
_QUALITY = 95


@dataclass(frozen=True)
class Picture:
    """The content of an image file. pixels: bytes (3, height, width), blue first. cover: alpha
    (height, width), if some of it is transparent. grey: whether it has no colours. profile: of
    its colours (ICC)."""

    pixels: np.ndarray
    cover: np.ndarray | None = None
    grey: bool = False
    profile: bytes | None = None


def find(given: str, output: str, *, pictures: bool) -> list[tuple[Path, Path]]:
    """The images to read, and the file to write for each; OUT's folder is made.

    pictures: what is written for each is a PNG picture in the folder OUT.
    """
    source, target = Path(given), Path(output)
    if not source.exists():
        raise UserError(f"{given}: no such image or folder")
    paths = [Path(path) for path in find_files([given])]
    if source.is_dir() or pictures:
        root = source if source.is_dir() else source.parent
        if target.is_file():
            raise UserError(f"{output}: is a file, but there are several to write: give a folder")
        if target.resolve() == root.resolve():
            raise UserError(f"{output}: the images are there: name another folder to write to")
        named = [target / _name(path.relative_to(root), pictures) for path in paths]
    else:
        named = [target / _name(Path(source.name), False) if target.is_dir() else target]
        if source.resolve() == named[0].resolve():
            raise UserError(f"{output}: would replace the image itself: give another name")
    for path in named:
        if path.suffix.lower() not in FORMATS:
            raise UserError(f"{path}: name a file that ends with {', '.join(FORMATS)}")
        make_folder(path.parent)
    if len(set(named)) < len(named):
        raise UserError(f"{given}: holds images whose names differ in their endings only")
    return list(zip(paths, named, strict=True))


def _name(path: Path, picture: bool) -> Path:
    """The name of the file for an image: it keeps its format, if that can be written."""
    keeps = path.suffix.lower() in FORMATS and not picture
    return path if keeps else path.with_suffix(".png")


def read(path: Path) -> Picture:
    """The content of a file. UserError if it cannot be read."""
    content = read_bytes(path)
    planes = decode_content(path, content).transpose(2, 0, 1)
    profile = _profile(content)
    if len(planes) == 1:
        return Picture(planes.repeat(3, axis=0), grey=True, profile=profile)
    pixels, cover = np.ascontiguousarray(planes[:3]), None
    if len(planes) == 4:
        cover = np.ascontiguousarray(planes[3])
    grey = cover is not None and bool((pixels == pixels[:1]).all())
    return Picture(pixels, cover, grey, profile)


def _profile(content: bytes) -> bytes | None:
    from PIL import Image

    try:
        profile = Image.open(io.BytesIO(content)).info.get("icc_profile")
    except Exception:  # the pixels were read by other means
        return None
    return profile if isinstance(profile, bytes) else None


def check(path: Path, picture: Picture) -> None:
    """UserError if the format of a file cannot hold a picture."""
    if picture.cover is not None and FORMATS[path.suffix.lower()] == "JPEG":
        raise UserError(f"{path}: JPEG has no transparency: name a .png or .webp")


def enlarge(picture: Picture, enlarger: Enlarger) -> Picture:
    """A picture enlarged by a net."""
    pixels = enlarger.enlarge(picture.pixels)
    if picture.grey:
        # The net may give greys a hint of colour.
        pixels = np.rint(pixels.mean(axis=0, keepdims=True)).astype(np.uint8).repeat(3, axis=0)
    cover = picture.cover
    if cover is not None:
        cover = interpolate(cover, enlarger.scale)
    return dataclasses.replace(picture, pixels=pixels, cover=cover)


def write(path: Path, picture: Picture) -> None:
    """Write a picture in the format that the file's ending names."""
    planes, mode = picture.pixels, "L" if picture.grey else "RGB"
    if picture.cover is not None:
        planes, mode = np.concatenate([planes, picture.cover[None]]), mode + "A"
    options = {"icc_profile": picture.profile} if picture.profile else {}
    kind = FORMATS[path.suffix.lower()]
    save_image(to_image(planes, mode), path, kind, quality=_QUALITY, **options)
