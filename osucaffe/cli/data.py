"""Make the databases of the small data sets.

  osucaffe data mnist                   mnist_train_lmdb and mnist_test_lmdb in data/mnist
  osucaffe data mnist --files FOLDER    from MNIST's four files, plain or .gz

Without --files, MNIST is taken from its public mirrors (and its checksums verified), or else a
subset of 10,000 + 2,000 digits that comes with osucaffe."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("name", choices=("mnist",), help="the data set")
    parser.add_argument(
        "--out", metavar="DIR", default="data/mnist", help="where to (default: data/mnist)"
    )
    parser.add_argument("--files", metavar="DIR", help="a folder with the files of MNIST")
    parser.add_argument(
        "--source",
        choices=("auto", "files", "download", "packaged"),
        default="auto",
        help="take this source only (default: auto, the first that there is)",
    )


def run(args: argparse.Namespace) -> None:
    """Make the databases."""
    from ..data import mnist

    mnist.make(args.out, source=args.source, files=args.files)
