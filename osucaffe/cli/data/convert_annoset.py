"""Owns `osucaffe convert_annoset`: images and annotations of a list become an LMDB, as in SSD."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np

from ...data.pictures.image import decode_content, read_content, resize
from ...data.sets import make_annotated as make
from ...data.sets.convert import ENCODINGS, encode_image, has_encoding
from ...errors import UserError
from .. import options
from ..output import progress


def run(args: argparse.Namespace) -> None:
    """Make the database."""
    if args.anno_type == "detection":
        entries = make.read_annotations(args.root, args.list, args.label_type, _labels(args))
    else:
        entries = make.read_labels(args.root, args.list)
    if args.shuffle:
        random.Random(args.seed).shuffle(entries)
    bad = options.bad_records(args)
    with progress("Converting", len(entries)) as advance:
        count = make.make_database(
            entries,
            args.output,
            picture=lambda path: _picture(path, args),
            check_size=args.check_size,
            threads=options.readers(args),
            bad=bad,
            advance=advance,
        )
    skipped = f" ({bad.count:,} bad ones skipped)" if bad.count else ""
    print(f"{args.output}: {count:,} images{skipped}")


def _labels(args: argparse.Namespace) -> dict[str, int]:
    """The numbers of the label map's names; only text files of annotations need none."""
    if not args.label_map_file:
        if args.label_type == "txt":
            return {}
        raise UserError("give --label_map_file: it has the numbers of the annotations' labels")
    labels = make.read_label_map(args.label_map_file)
    numbers = {number for _, number in labels}
    if args.check_label and not len(labels) == len(dict(labels)) == len(numbers):
        raise UserError(f"{args.label_map_file}: a name or a number is there twice (--check_label)")
    return dict(labels)


def _picture(path: Path, args: argparse.Namespace) -> make.Picture:
    """An image as the options say: resized, gray, compressed. UserError."""
    encoding = args.encode_type.lower() or (path.suffix[1:].lower() if args.encoded else "")
    if encoding and encoding not in ENCODINGS:
        raise UserError(f'{path}: unknown encoding "{encoding}": use one of {", ".join(ENCODINGS)}')
    content = read_content(path)
    image = decode_content(path, content, not args.gray)
    height, width, channels = image.shape
    small = resize(image, *_target(height, width, args))
    shape = (channels, *small.shape[:2])
    data: bytes | np.ndarray = np.ascontiguousarray(small.transpose(2, 0, 1))
    if encoding:
        same = small is image and not args.gray and has_encoding(str(path), encoding)
        data = content if same else encode_image(small, encoding)
    return make.Picture(data, shape, (height, width))


def _target(height: int, width: int, args: argparse.Namespace) -> tuple[int, int]:
    """The size of an image in the database: its sides keep their proportion where the shorter one
    is to be at least min_dim, and the longer one, which goes before, at most max_dim."""
    if not (args.min_dim or args.max_dim):
        given = args.resize_height and args.resize_width
        return (args.resize_height, args.resize_width) if given else (height, width)
    short, long = sorted((height, width))
    scale = max(args.min_dim / short, 1.0)
    if args.max_dim and int(scale * long) > args.max_dim:
        scale = args.max_dim / long
    return max(round(height * scale), 1), max(round(width * scale), 1)
