"""Make the LMDBs of CIFAR-10.

  osucaffe convert_cifar FOLDER OUTPUT

FOLDER holds CIFAR-10's files, in the binary or the Python version; cifar10_train_lmdb and
cifar10_test_lmdb are made in OUTPUT."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", metavar="FOLDER", help="the folder of CIFAR-10's files")
    parser.add_argument("output", metavar="OUTPUT", help="the folder to write the databases to")
    parser.add_argument(
        "backend", metavar="lmdb", nargs="?", choices=("lmdb",), help="the kind of database"
    )


def run(args: argparse.Namespace) -> None:
    """Make the databases."""
    from pathlib import Path

    from ...data.sets.cifar import convert_cifar
    from ..progress import progress

    with progress("Converting", 6) as advance:
        counts = convert_cifar(args.folder, args.output, advance=advance)
    for name, count in counts.items():
        print(f"{Path(args.output) / name}: {count:,} images")
