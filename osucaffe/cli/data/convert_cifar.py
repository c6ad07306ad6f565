"""`osucaffe convert_cifar`: converts CIFAR-10's files to LMDBs."""

from __future__ import annotations

from pathlib import Path

from ...data.sets.cifar import convert_cifar
from ..output import progress
from .options import ConvertCifar


def run(options: ConvertCifar) -> None:
    """Make the databases."""
    with progress("Converting", 6) as advance:
        counts = convert_cifar(options.folder, options.output, advance=advance)
    for name, count in counts.items():
        print(f"{Path(options.output) / name}: {count:,} images")
