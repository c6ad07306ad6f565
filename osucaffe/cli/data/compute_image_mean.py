"""`osucaffe compute_image_mean`: the mean image of an LMDB."""

from __future__ import annotations

from ...backends.cores import usable_cores
from ...data.databases.database import open_database
from ...data.sets.mean import compute_mean
from ...proto import write_mean
from .. import loading
from ..output import progress
from .options import ComputeImageMean


def run(options: ComputeImageMean) -> None:
    """Compute the mean."""
    database = open_database(options.input)
    bad = loading.bad_records(options.reading.skip_bad)
    with progress("Averaging", len(database)) as advance:
        mean = compute_mean(
            database, threads=options.reading.readers or usable_cores(), bad=bad, advance=advance
        )
    channels, height, width = mean.shape
    print(f"{len(database) - bad.count:,} images of {channels} x {height} x {width}")
    for channel, value in enumerate(mean.mean(axis=(1, 2))):
        print(f"mean_value channel [{channel}]: {value:.6g}")
    if bad.count:
        print(f"{bad.count:,} bad records skipped")
    if options.output:
        write_mean(options.output, mean)
        print(f"Written to {options.output}")
