"""`osucaffe convert_annoset` and `data annotated`: images and their boxes become an LMDB."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from ...backends.cores import usable_cores
from ...cli import loading
from ...cli.data.options import Annotated
from ...cli.output import progress
from ...data.pictures.image import decode_content, read_content, resize
from ...data.sets.convert import ENCODINGS, encode_image, has_encoding
from ...errors import UserError
from . import make_annotated as make
from .options import ConvertAnnoset


def run(options: ConvertAnnoset) -> None:
    """Make the database."""
    if options.anno_type == "detection":
        entries = make.read_annotations(
            options.root, options.list, options.label_type, _labels(options)
        )
    else:
        entries = make.read_labels(options.root, options.list)
    if options.shuffle:
        random.Random(options.seed).shuffle(entries)
    bad = loading.bad_records(options.reading.skip_bad)
    with progress("Converting", len(entries)) as advance:
        count = make.make_database(
            entries,
            options.output,
            picture=lambda path: _picture(path, options),
            check_size=options.check_size,
            threads=options.reading.readers or usable_cores(),
            bad=bad,
            advance=advance,
        )
    skipped = f" ({bad.count:,} bad ones skipped)" if bad.count else ""
    print(f"{options.output}: {count:,} images{skipped}")


def _labels(options: ConvertAnnoset) -> dict[str, int]:
    """The numbers of the label map's names; only text files of annotations need none."""
    if not options.label_map_file:
        if options.label_type == "txt":
            return {}
        raise UserError("give --label_map_file: it has the numbers of the annotations' labels")
    labels = make.read_label_map(options.label_map_file)
    numbers = {number for _, number in labels}
    if options.check_label and not len(labels) == len(dict(labels)) == len(numbers):
        raise UserError(
            f"{options.label_map_file}: a name or a number is there twice (--check_label)"
        )
    return dict(labels)


def _picture(path: Path, options: ConvertAnnoset) -> make.Picture:
    """An image as the options say: resized, gray, compressed. UserError."""
    encoding = options.encode_type.lower() or (path.suffix[1:].lower() if options.encoded else "")
    if encoding and encoding not in ENCODINGS:
        raise UserError(f'{path}: unknown encoding "{encoding}": use one of {", ".join(ENCODINGS)}')
    content = read_content(path)
    image = decode_content(path, content, not options.gray)
    height, width, channels = image.shape
    small = resize(image, *_target(height, width, options))
    shape = (channels, *small.shape[:2])
    data: bytes | np.ndarray = np.ascontiguousarray(small.transpose(2, 0, 1))
    if encoding:
        same = small is image and not options.gray and has_encoding(str(path), encoding)
        data = content if same else encode_image(small, encoding)
    return make.Picture(data, shape, (height, width))


def _target(height: int, width: int, options: ConvertAnnoset) -> tuple[int, int]:
    """The size of an image in the database: its sides keep their proportion where the shorter one
    is to be at least min_dim, and the longer one, which goes before, at most max_dim."""
    if not (options.min_dim or options.max_dim):
        given = options.resize_height and options.resize_width
        return (options.resize_height, options.resize_width) if given else (height, width)
    short, long = sorted((height, width))
    scale = max(options.min_dim / short, 1.0)
    if options.max_dim and int(scale * long) > options.max_dim:
        scale = options.max_dim / long
    return max(round(height * scale), 1), max(round(width * scale), 1)


def make_annotated(options: Annotated) -> None:
    """Make the database and label map of `osucaffe data annotated`."""
    if bool(options.voc) == bool(options.coco) or bool(options.coco) != bool(options.images):
        raise UserError("give --voc DIR, or --coco FILE and --images DIR")
    if options.coco:
        entries, labels = make.read_coco(Path(options.images or ""), Path(options.coco))
    else:
        labels = [(name, number) for number, name in enumerate(make.VOC_CLASSES, 1)]
        labels = make.read_label_map(options.labels) if options.labels else labels
        entries = [
            entry for folder in options.voc or ()
            for entry in make.read_voc(Path(folder), options.split, dict(labels))
        ]  # fmt: skip
    with progress("Writing", len(entries)) as advance:
        count = make.make_database(
            entries, options.output, threads=options.readers or usable_cores(), advance=advance
        )
    names = f"{options.output.rstrip('/')}.labelmap.prototxt"
    make.write_label_map(names, labels)
    print(f"{options.output}: {count:,} images; {names}: {len(labels)} labels")
