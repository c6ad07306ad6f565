"""Owns `osucaffe compute_image_mean`: the mean image of an LMDB."""

from __future__ import annotations

import argparse

from ...data.databases.database import open_database
from ...data.sets.mean import compute_mean
from ...proto import write_mean
from .. import options
from ..output import progress


def run(args: argparse.Namespace) -> None:
    """Compute the mean."""
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
