"""Canvases with digits of MNIST at random places and sizes, and which digit each pixel is of.

  python examples/segnet_digits/canvases.py FOLDER [--mnist FILES]

writes FOLDER/train.txt and FOLDER/test.txt, lists of pairs of PNGs for DenseImageData. The digits
of the test canvases are MNIST's test digits: none of them is in a training canvas.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from osucaffe.data.sets import mnist

SIDE = 64
"""Pixels of a canvas."""
DIGITS = 2, 4
"""Least and most on a canvas."""
SIZES = 24, 36
"""Least and greatest side of the square of a digit, in pixels."""
CLASSES = 11
"""Paper, and the digits 0 to 9 after it."""
INK = 64
"""From so much ink on (of 255) a pixel belongs to its digit."""


def canvas(digits: mnist.Digits, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A gray image and its labels, both uint8 (SIDE, SIDE). No digit covers another."""
    image = np.zeros((SIDE, SIDE), np.uint8)
    label = np.zeros((SIDE, SIDE), np.uint8)
    for _ in range(draw.integers(DIGITS[0], DIGITS[1] + 1)):
        size = int(draw.integers(SIZES[0], SIZES[1] + 1))
        chosen = int(draw.integers(len(digits.images)))
        digit = np.asarray(Image.fromarray(digits.images[chosen]).resize((size, size)))
        for _ in range(20):  # where there is room
            top, left = draw.integers(0, SIDE - size + 1, 2)
            place = slice(top, top + size), slice(left, left + size)
            if not ((image[place] > 0) & (digit > 0)).any():
                image[place] = np.maximum(image[place], digit)
                label[place][digit >= INK] = digits.labels[chosen] + 1
                break
    return image, label


def write(folder: Path, name: str, digits: mnist.Digits, count: int, seed: int) -> None:
    """Write so many canvases and labels as PNGs, and the list NAME.txt that names them."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    draw, lines = np.random.default_rng(seed), []
    for i in range(count):
        pair = folder / name / f"{i:05}.png", folder / name / f"{i:05}_label.png"
        for path, values in zip(pair, canvas(digits, draw), strict=True):
            Image.fromarray(values).save(path)
        lines.append(f"{pair[0]} {pair[1]}\n")
    (folder / f"{name}.txt").write_text("".join(lines))


def main() -> None:
    """Run as a script."""
    parser = argparse.ArgumentParser(description="Make canvases with digits and their labels.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mnist", metavar="FILES", help="folder of MNIST's files")
    parser.add_argument("--train", type=int, default=8000, metavar="N", help="canvases to train on")
    parser.add_argument("--test", type=int, default=500, metavar="N", help="held-out canvases")
    arguments = parser.parse_args()
    digits = mnist.load("files" if arguments.mnist else "auto", arguments.mnist)
    print(f"digits {digits.origin}", flush=True)
    write(arguments.folder, "train", digits.train, arguments.train, seed=1)
    write(arguments.folder, "test", digits.test, arguments.test, seed=2)


if __name__ == "__main__":
    main()
