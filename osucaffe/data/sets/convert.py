"""The conversion of image files to databases: their records, and the encoding of pixels."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import simplejpeg

from ...errors import UserError
from ...proto import caffe_pb2
from ..ahead.parallel_map import BadRecords, map_usable
from ..databases.database import record_key, write_database
from ..databases.datum import make_datum
from ..pictures.image import decode_content, read_content
from ..pictures.transform import unlike_first
from ..streams.image_list import Entry, check_root

ENCODINGS = ("jpg", "jpeg", "png")
_JPEG_QUALITY = 95  # OpenCV's, as Caffe's tool writes


def convert_images(
    entries: Sequence[Entry],
    root: str,
    output: str | os.PathLike[str],
    *,
    gray: bool = False,
    size: tuple[int, int] | None = None,
    check_size: bool = False,
    encoding: str | None = None,
    read: Callable[[str], np.ndarray] | None = None,
    threads: int = 1,
    bad: BadRecords | None = None,
    advance: Callable[[], object] = lambda: None,
) -> list[Entry]:
    """Write the images of a list as the LMDB `output`; return those that it has, record by record.

    root: put before each name. size: (height, width) to resize to. check_size: all images must
    have the first one's size. encoding: one of ENCODINGS, to keep images compressed: a file that
    has this encoding already, and needs no change, is copied. read: gives the pixels of a
    file, (height, width, channels), blue first, in place of gray and size. bad: what to do about
    images that cannot be read. advance is called after each image. Raises UserError, also if no
    image can be used: then `output` is not changed.
    """
    if encoding is not None and encoding not in ENCODINGS:
        raise UserError(f'unknown encoding "{encoding}": use one of {", ".join(ENCODINGS)}')
    check_root(root, entries)
    bad = bad or BadRecords()
    written: list[Entry] = []

    def load(numbered: tuple[int, Entry]) -> tuple[bytes, tuple[int, int]]:
        return _load(numbered[1], root, gray, size, encoding, read)

    def records() -> Iterator[tuple[bytes, bytes]]:
        first: tuple[int, int] | None = None
        loaded = map_usable(load, list(enumerate(entries)), threads, bad, advance)
        for (index, entry), (value, extent) in loaded:
            first = first or extent
            if check_size and extent != first:
                name, remedy = f"image {root + entry.name}", "resize them, or leave out check_size"
                bad.report(unlike_first(name, extent, first, remedy))
                continue
            written.append(entry)
            yield record_key(index, entry.name), value
        if not written:
            raise UserError(f"{output}: none of its {len(entries):,} images can be used")

    write_database(output, records())
    return written


def _load(
    entry: Entry,
    root: str,
    gray: bool,
    size: tuple[int, int] | None,
    encoding: str | None,
    read: Callable[[str], np.ndarray] | None,
) -> tuple[bytes, tuple[int, int]]:
    """The Datum of an image file with its (height, width). UserError where it is bad."""
    path = root + entry.name
    content = b"" if read else read_content(path)
    image = read(path) if read else decode_content(path, content, not gray, size)
    extent = (image.shape[0], image.shape[1])
    if encoding is None:
        return make_datum(image.transpose(2, 0, 1), entry.label, encoded=False), extent
    same = not read and not gray and size is None and has_encoding(path, encoding)
    data = content if same else encode_image(image, encoding)
    datum = caffe_pb2.Datum(data=data, label=entry.label, encoded=True)
    return datum.SerializeToString(), extent


def encode_image(image: np.ndarray, encoding: str) -> bytes:
    """A uint8 image (height, width, 1 or 3 channels, blue first) as JPEG or PNG."""
    channels = image.shape[2]
    if encoding in ("jpg", "jpeg"):
        return simplejpeg.encode_jpeg(
            np.ascontiguousarray(image),
            quality=_JPEG_QUALITY,
            colorspace="GRAY" if channels == 1 else "BGR",
            colorsubsampling="Gray" if channels == 1 else "420",
        )
    from PIL import Image

    stream = io.BytesIO()
    pixels = image[:, :, 0] if channels == 1 else np.ascontiguousarray(image[:, :, ::-1])
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


def has_encoding(path: str, encoding: str) -> bool:
    """Whether a file's suffix is that of the encoding."""
    extension = path.rpartition(".")[2].lower().replace("jpeg", "jpg")
    return extension == encoding.replace("jpeg", "jpg")
