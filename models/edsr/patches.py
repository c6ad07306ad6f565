"""Owns the databases that EDSR trains on: paired patches cut from images of two resolutions.

  python models/edsr/patches.py LOW HIGH data/div2k/train

LOW and HIGH are folders with the same images, sorted alike by name, HIGH twice as large. Makes
data/div2k/train_low_lmdb (48x48) and train_high_lmdb (96x96), whose records belong together.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from osucaffe.data.database import record_key, write_database
from osucaffe.data.datum import decode_image, make_datum
from osucaffe.errors import UserError

SCALE, SIDE = 2, 48


def turn(patch: np.ndarray, way: int) -> np.ndarray:
    """One of the eight ways in which a square (height, width, channels) can lie."""
    return np.rot90(patch[:, ::-1] if way & 4 else patch, way & 3)


def cut(
    low: np.ndarray, high: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A random patch of both images, turned in a random way, as (channels, height, width)."""
    row, column = (generator.integers(extent - SIDE + 1) for extent in low.shape[:2])
    way = int(generator.integers(8))
    patches = []
    for image, scale in ((low, 1), (high, SCALE)):
        rows = slice(row * scale, (row + SIDE) * scale)
        columns = slice(column * scale, (column + SIDE) * scale)
        patches.append(turn(image[rows, columns], way).transpose(2, 0, 1))
    return patches[0], patches[1]


def make(low: Path, high: Path, output: str, each: int, seed: int = 1) -> int:
    """Write the two databases, `each` patches of every image, mixed; return the patches' number."""
    generator = np.random.default_rng(seed)
    pairs = []
    files = [sorted(path for path in folder.iterdir() if path.is_file()) for folder in (low, high)]
    if len(files[0]) != len(files[1]):
        raise UserError(f"{low} has {len(files[0])} images, {high} has {len(files[1])}")
    for names in zip(*files, strict=True):
        small, large = (decode_image(memoryview(name.read_bytes()), True) for name in names)
        if large.shape[:2] != tuple(SCALE * extent for extent in small.shape[:2]):
            raise UserError(f"{names[1]} is not twice as large as {names[0]}")
        if min(small.shape[:2]) < SIDE:
            raise UserError(f"{names[0]} is smaller than a patch, {SIDE} x {SIDE}")
        pairs += [cut(small, large, generator) for _ in range(each)]
    order = generator.permutation(len(pairs))
    for part, resolution in enumerate(("low", "high")):
        write_database(
            f"{output}_{resolution}_lmdb",
            ((record_key(i), make_datum(pairs[j][part], 0)) for i, j in enumerate(order)),
        )
    return len(pairs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("low", type=Path)
    parser.add_argument("high", type=Path)
    parser.add_argument("output", help="the databases' folder and the beginning of their names")
    parser.add_argument("--each", type=int, default=40, help="patches of an image (default: 40)")
    args = parser.parse_args()
    print(f"{make(args.low, args.high, args.output, args.each):,} patches")
