"""Compute the mean image of an LMDB.

  osucaffe compute_image_mean LMDB mean.binaryproto

Prints the mean of each channel, for mean_value, and writes the mean image, if a file is given, for
mean_file."""

from __future__ import annotations

import argparse

from .. import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("input", metavar="LMDB", help="the database")
    parser.add_argument("output", metavar="FILE", nargs="?", help="where to write the mean")
    parser.add_argument("--backend", choices=("lmdb",), default="lmdb", help="the kind of database")
    options.add_reading(parser)


def run(args: argparse.Namespace) -> None:
    """Compute the mean."""
    from ...data.databases.database import open_database
    from ...data.sets.mean import compute_mean
    from ...proto import write_mean
    from ..progress import progress

    database = open_database(args.input)
    bad = options.bad_records(args)
    with progress("Averaging", len(database)) as advance:
        mean = compute_mean(database, threads=options.readers(args), bad=bad, advance=advance)
    channels, height, width = mean.shape
    print(f"{len(database) - bad.count:,} images of {channels} x {height} x {width}")
    for channel, value in enumerate(mean.mean(axis=(1, 2))):
        print(f"mean_value channel [{channel}]: {value:.6g}")
    if bad.count:
        print(f"{bad.count:,} bad records skipped")
    if args.output:
        write_mean(args.output, mean)
        print(f"Written to {args.output}")
