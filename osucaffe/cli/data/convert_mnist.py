"""`osucaffe convert_mnist`: a pair of MNIST's files becomes an LMDB."""

from __future__ import annotations

from ...data.sets import mnist
from .options import ConvertMnist


def run(options: ConvertMnist) -> None:
    """Make the database."""
    count = mnist.convert(options.images, options.labels, options.output)
    print(f"{options.output}: {count:,} digits")
