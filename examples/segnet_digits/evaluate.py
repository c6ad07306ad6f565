"""The score of the segmentation: mean IoU on the held-out canvases, and a picture of some.

  python examples/segnet_digits/evaluate.py WEIGHTS [SHEET.png]

IoU of a class: the pixels that are of it and are taken for it, over those that are either, in all
canvases together. The mean is over paper and the ten digits.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from canvases import CLASSES, SIDE
from PIL import Image, ImageDraw, ImageFont

import osucaffe.pycaffe as caffe

HERE = Path(__file__).parent
COLOURS = np.array([
    (255, 255, 255), (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189),
    (140, 86, 75), (227, 119, 194), (127, 127, 127), (188, 189, 34), (23, 190, 207),
], np.uint8)  # fmt: skip
"""Of each class: paper, 0, 1, 2 ..."""


def segment(weights: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The held-out canvases, their labels, and what the net takes pixels for: (N, SIDE, SIDE)."""
    net = caffe.Net(str(HERE / "train_val.prototxt"), weights, caffe.TEST)
    count = len((HERE / "canvases" / "test.txt").read_text().splitlines())
    images, labels, taken = [], [], []
    for _ in range(count // len(net.blobs["data"].data)):
        net.forward()
        images.append(net.blobs["data"].data[:, 0].copy())
        labels.append(net.blobs["label"].data[:, 0].astype(int))
        taken.append(net.blobs["score"].data.argmax(axis=1))
    return np.concatenate(images), np.concatenate(labels), np.concatenate(taken)


def class_ious(labels: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Intersection over union of each class."""
    pairs = np.bincount((labels * CLASSES + taken).ravel(), minlength=CLASSES**2)
    table = pairs.reshape(CLASSES, CLASSES)
    hits = table.diagonal()
    return hits / np.maximum(table.sum(axis=0) + table.sum(axis=1) - hits, 1)


def write_sheet(path: str, images: np.ndarray, labels: np.ndarray, taken: np.ndarray) -> None:
    """A picture of canvases in columns: as they are, what they show, and what the net sees."""
    scale, gap, head = 2, 8, 26
    cell = SIDE * scale
    size = len(images) * (cell + gap) + gap + 70, 3 * (cell + gap) + head
    sheet = Image.new("RGB", size, (235, 235, 238))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    x = gap
    for name, colour in zip(range(10), COLOURS[1:], strict=True):
        draw.text((x, 5), str(name), tuple(map(int, colour)), ImageFont.load_default(18))
        x += 22
    gray = np.repeat(255 - (images * 255).astype(np.uint8)[..., None], 3, axis=-1)
    for row, (name, pictures) in enumerate(
        (("canvas", gray), ("label", COLOURS[labels]), ("net", COLOURS[taken]))
    ):
        top = head + row * (cell + gap)
        for column, picture in enumerate(pictures):
            large = Image.fromarray(np.ascontiguousarray(picture)).resize((cell, cell), 0)
            sheet.paste(large, (gap + column * (cell + gap), top))
        draw.text((size[0] - 64, top + cell // 2), name, (40, 40, 44), font)
    sheet.save(path)


def main() -> None:
    """Run as a script."""
    parser = argparse.ArgumentParser(description="Score the segmentation of held-out canvases.")
    parser.add_argument("weights", metavar="WEIGHTS.caffemodel")
    parser.add_argument("sheet", nargs="?", metavar="SHEET.png", help="picture of ten canvases")
    arguments = parser.parse_args()
    images, labels, taken = segment(arguments.weights)
    ious = class_ious(labels, taken)
    for name, iou in zip(["paper", *map(str, range(10))], ious, strict=True):
        print(f"{name:>5}  IoU {iou:.3f}")
    print(f"mean IoU {ious.mean():.3f} on {len(images)} canvases")
    if arguments.sheet:
        write_sheet(arguments.sheet, images[:10], labels[:10], taken[:10])


if __name__ == "__main__":
    main()
