"""Make the canvases of this example: digits of MNIST at random places and sizes, with their boxes.

python examples/ssd_digits/make_data.py [--out data/ssd_digits] [--source packaged]

Two databases of AnnotatedDatum: canvases of training digits, and of test digits, which no training
canvas shows. Needs no file: a subset of MNIST comes with osucaffe.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from osucaffe.data.databases.database import record_key, write_database
from osucaffe.data.pictures.image import resize
from osucaffe.data.sets.mnist import Digits, load
from osucaffe.forks.ssd.make_annotated import annotated_record, write_label_map

SIDE, MAX_OBJECTS = 80, 4
SMALLEST, LARGEST = 20, 48
"""Of a digit's 28 pixels, of which about 20 are ink."""


def canvas(
    digits: Digits, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An image (1, SIDE, SIDE), the labels of its digits (1 for a zero), and the ink's boxes."""
    image = generator.integers(0, 48, (SIDE, SIDE)).astype(np.uint8)
    labels: list[int] = []
    boxes: list[np.ndarray] = []
    for _ in range(generator.integers(1, MAX_OBJECTS + 1)):
        index, size = generator.integers(len(digits.images)), generator.integers(SMALLEST, LARGEST)
        ink = resize(digits.images[index][:, :, None], int(size), int(size))[:, :, 0]
        rows, columns = (np.flatnonzero(ink.max(axis=axis) > 64) for axis in (1, 0))
        ink = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        for _ in range(20):  # where it touches no other
            top, left = (int(generator.integers(SIDE - extent + 1)) for extent in ink.shape)
            box = np.array([left, top, left + ink.shape[1], top + ink.shape[0]])
            if all((box[2:] <= other[:2]).any() or (box[:2] >= other[2:]).any() for other in boxes):
                part = image[top : box[3], left : box[2]]
                np.maximum(part, ink * generator.uniform(0.6, 1), out=part, casting="unsafe")
                labels.append(int(digits.labels[index]) + 1)
                boxes.append(box)
                break
    return image[None], np.array(labels), np.array(boxes) / SIDE


def records(digits: Digits, count: int, seed: int) -> Iterator[tuple[bytes, bytes]]:
    """How many canvases."""
    generator = np.random.default_rng(seed)
    for index in range(count):
        yield record_key(index), annotated_record(*canvas(digits, generator))


def main() -> None:
    """Write the databases and the label map."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="data/ssd_digits")
    parser.add_argument("--source", default="packaged", help="as of osucaffe data mnist")
    parser.add_argument("--files", help="as of osucaffe data mnist")
    parser.add_argument("--train", type=int, default=12000)
    parser.add_argument("--test", type=int, default=1000)
    args = parser.parse_args()
    digits = load(args.source, args.files)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    parts = (("train", digits.train, args.train, 1), ("test", digits.test, args.test, 2))
    for name, part, count, seed in parts:
        write_database(out / f"{name}_lmdb", records(part, count, seed))
        print(f"{out / name}_lmdb: {count:,} canvases of {len(part.images):,} digits")
    write_label_map(out / "labelmap.prototxt", [(str(digit), digit + 1) for digit in range(10)])


if __name__ == "__main__":
    main()
