"""Owns `osucaffe convert_cifar`: CIFAR-10's files become LMDBs."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...data.sets.cifar import convert_cifar
from ..output import progress


def run(args: argparse.Namespace) -> None:
    """Make the databases."""
    with progress("Converting", 6) as advance:
        counts = convert_cifar(args.folder, args.output, advance=advance)
    for name, count in counts.items():
        print(f"{Path(args.output) / name}: {count:,} images")
