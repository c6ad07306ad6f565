"""`osucaffe convert_imageset`: the image files of a list become an LMDB."""

from __future__ import annotations

import random

from ...backends.cores import usable_cores
from ...data.sets.convert import convert_images
from ...data.streams.image_list import read_list
from ...errors import UserError
from .. import loading
from ..output import progress
from .options import ConvertImageset


def run(options: ConvertImageset) -> None:
    """Make the database."""
    if bool(options.resize_height) != bool(options.resize_width):
        raise UserError("give both --resize_height and --resize_width, or neither")
    size = (options.resize_height, options.resize_width) if options.resize_height else None
    entries = read_list(options.list)
    encoding = options.encode_type.lower()
    if options.encoded and not encoding:
        encoding = entries[0].name.rpartition(".")[2].lower()
    if options.shuffle:
        random.Random(options.seed).shuffle(entries)
    bad = loading.bad_records(options.reading.skip_bad)
    with progress("Converting", len(entries)) as advance:
        written = convert_images(
            entries,
            options.root,
            options.output,
            gray=options.gray,
            size=size,
            check_size=options.check_size,
            encoding=encoding or None,
            threads=options.reading.readers or usable_cores(),
            bad=bad,
            advance=advance,
        )
    skipped = f" ({bad.count:,} bad ones skipped)" if bad.count else ""
    print(f"{options.output}: {len(written):,} images{skipped}")
