"""Owns `osucaffe convert_imageset`: the image files of a list become an LMDB."""

from __future__ import annotations

import argparse
import random

from ...data.sets.convert import convert_images
from ...data.streams.image_list import read_list
from ...errors import UserError
from .. import options
from ..output import progress


def run(args: argparse.Namespace) -> None:
    """Make the database."""
    if bool(args.resize_height) != bool(args.resize_width):
        raise UserError("give both --resize_height and --resize_width, or neither")
    size = (args.resize_height, args.resize_width) if args.resize_height else None
    entries = read_list(args.list)
    encoding = args.encode_type.lower()
    if args.encoded and not encoding:
        encoding = entries[0].name.rpartition(".")[2].lower()
    if args.shuffle:
        random.Random(args.seed).shuffle(entries)
    bad = options.bad_records(args)
    with progress("Converting", len(entries)) as advance:
        written = convert_images(
            entries,
            args.root,
            args.output,
            gray=args.gray,
            size=size,
            check_size=args.check_size,
            encoding=encoding or None,
            threads=options.readers(args),
            bad=bad,
            advance=advance,
        )
    skipped = f" ({bad.count:,} bad ones skipped)" if bad.count else ""
    print(f"{args.output}: {len(written):,} images{skipped}")
