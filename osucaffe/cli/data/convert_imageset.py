"""Make an LMDB of the image files in a list.

  osucaffe convert_imageset --resize_height 256 --resize_width 256 --shuffle FOLDER/ LIST LMDB

LIST has a line NAME LABEL for each image; each NAME gets the prefix FOLDER/."""

from __future__ import annotations

import argparse

from .. import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("root", metavar="FOLDER/", help="prefix of each name in the list")
    parser.add_argument("list", metavar="LIST", help="a text file with lines NAME LABEL")
    parser.add_argument(
        "output", metavar="LMDB", help="the LMDB to write; an existing one is replaced"
    )
    add = parser.add_argument
    add("--gray", action="store_true", help="write one channel instead of three")
    add("--shuffle", action="store_true", help="write the images in random order")
    add("--seed", metavar="N", type=int, default=1, help="seed of that order (default: 1)")
    add("--backend", choices=("lmdb",), default="lmdb", help="the kind of database")
    extent = options.extent
    add(
        "--resize_width",
        metavar="N",
        type=extent,
        default=0,
        help="resize all images to this; 0: leave them as they are",
    )
    add(
        "--resize_height",
        metavar="N",
        type=extent,
        default=0,
        help="resize all images to this; 0: leave them as they are",
    )
    add("--check_size", action="store_true", help="refuse images that differ in size")
    add("--encoded", action="store_true", help="store the images compressed")
    add("--encode_type", metavar="TYPE", default="", help="how to compress: jpg or png")
    options.add_reading(parser)


def run(args: argparse.Namespace) -> None:
    """Make the database."""
    import random

    from ...data.sets.convert import convert_images
    from ...data.streams.image_list import read_list
    from ...errors import UserError
    from ..progress import progress

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
