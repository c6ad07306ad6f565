"""The databases that the siamese net trains on: pairs of digits, labelled 1 if they are equal.

  python models/mnist_siamese/pairs.py

Makes mnist_siamese_{train,test}_lmdb in data/mnist_siamese from the databases in data/mnist.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from osucaffe.data.databases.database import open_database, record_key, write_database
from osucaffe.data.databases.datum import make_datum, parse_datum, pixels


def pairs(source: Path, seed: int) -> Iterator[tuple[bytes, bytes]]:
    """As many records as there are digits: each digit with a random one, as two channels."""
    database = open_database(source)
    records = database.read(0, len(database))
    digits = [parse_datum(value) for _, value in records]
    partners = np.random.default_rng(seed).permutation(len(digits)).tolist()
    for index, partner in enumerate(partners):
        both = digits[index], digits[partner]
        image = np.concatenate([pixels(digit) for digit in both])
        yield record_key(index), make_datum(image, int(both[0].label == both[1].label))


def make(source: Path, output: Path) -> None:
    """The databases of both parts."""
    for seed, part in enumerate(("train", "test"), start=1):
        count = write_database(
            output / f"mnist_siamese_{part}_lmdb", pairs(source / f"mnist_{part}_lmdb", seed)
        )
        print(f"{output / f'mnist_siamese_{part}_lmdb'}: {count:,} pairs")


if __name__ == "__main__":
    make(Path("data/mnist"), Path("data/mnist_siamese"))
