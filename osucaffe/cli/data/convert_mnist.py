"""Make an LMDB of a pair of MNIST files.

  osucaffe convert_mnist train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz LMDB

`osucaffe data mnist` makes both databases at once, and finds the files."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("images", metavar="IMAGES", help="the file of images, plain or .gz")
    parser.add_argument("labels", metavar="LABELS", help="the file of labels, plain or .gz")
    parser.add_argument(
        "output", metavar="LMDB", help="the LMDB to write; an existing one is replaced"
    )
    parser.add_argument("--backend", choices=("lmdb",), default="lmdb", help="the kind of database")


def run(args: argparse.Namespace) -> None:
    """Make the database."""
    from ...data.sets import mnist

    count = mnist.convert(args.images, args.labels, args.output)
    print(f"{args.output}: {count:,} digits")
