"""Owns `osucaffe convert_mnist`: a pair of MNIST's files becomes an LMDB."""

from __future__ import annotations

import argparse

from ...data.sets import mnist


def run(args: argparse.Namespace) -> None:
    """Make the database."""
    count = mnist.convert(args.images, args.labels, args.output)
    print(f"{args.output}: {count:,} digits")
