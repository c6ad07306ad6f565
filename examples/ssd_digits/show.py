"""Draw what the trained net finds on canvases that it has never seen, beside the truth.

python examples/ssd_digits/show.py [--weights FILE] [--sheet data/ssd_digits/sheet.png]

Boxes with their digits and scores: green where the truth has such a box (overlap 0.5), red where it
has not; the truth that was not found is yellow.
"""

from __future__ import annotations

import argparse

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from osucaffe.backends.cpu import Cpu
from osucaffe.data.databases.database import open_database
from osucaffe.data.databases.datum import pixels
from osucaffe.forks.boxes import iou
from osucaffe.forks.ssd.annotated import parse_annotated
from osucaffe.net import Net
from osucaffe.proto import read_net, read_weights

FOLDER, DATA = "examples/ssd_digits", "data/ssd_digits"
ZOOM, MIN_SCORE = 4, 0.4
GREEN, RED, YELLOW = (90, 230, 110), (255, 90, 90), (255, 220, 60)


def draw(
    image: np.ndarray, found: np.ndarray, labels: np.ndarray, boxes: np.ndarray
) -> Image.Image:
    """A picture of an image (1, height, width) with boxes.

    found: rows (R, 7) of DetectionOutput; labels, boxes: the truth.
    """
    picture = Image.fromarray(image[0]).convert("RGB")
    picture = picture.resize(
        (picture.width * ZOOM, picture.height * ZOOM), Image.Resampling.BICUBIC
    )
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(24)
    missing = set(range(len(labels)))

    def mark(box: np.ndarray, color: tuple[int, int, int], text: str) -> None:
        corners = box * (picture.size * 2)
        pen.rectangle([float(side) for side in corners], outline=color, width=3)
        pen.text((corners[0] + 5, corners[1] + 1), text, color, font, stroke_width=2,
                 stroke_fill=(0, 0, 0))  # fmt: skip

    for _, label, score, *box in found:
        shared = np.where(labels == label, iou(boxes, np.array(box)), 0)
        hit = shared.max(initial=0) >= 0.5
        missing -= {int(shared.argmax())} if hit else set()
        mark(np.array(box), GREEN if hit else RED, f"{int(label) - 1} {score:.0%}")
    for index in missing:
        mark(boxes[index], YELLOW, f"{int(labels[index]) - 1}")
    return picture


def sheet(pictures: list[Image.Image], columns: int = 6) -> Image.Image:
    """All of them as one picture."""
    side = pictures[0].width + 8
    whole = Image.new("RGB", (columns * side, -(-len(pictures) // columns) * side), "white")
    for index, picture in enumerate(pictures):
        whole.paste(picture, (index % columns * side + 4, index // columns * side + 4))
    return whole


def main() -> None:
    """Run the net on some canvases and write the sheet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", default=f"{DATA}/ssd_digits_iter_1200.caffemodel")
    parser.add_argument("--data", default=f"{DATA}/test_lmdb")
    parser.add_argument("--sheet", default=f"{DATA}/sheet.png")
    parser.add_argument("--count", type=int, default=30)
    args = parser.parse_args()
    net = Net(read_net(f"{FOLDER}/deploy.prototxt"), phase="TEST", backend=Cpu())
    net.load(read_weights(args.weights), args.weights)
    pictures = []
    records = open_database(args.data).read(0, args.count)
    for _, value in records:
        datum, truth = parse_annotated(value)
        image = pixels(datum)
        net.write("data", image[None].astype(np.float32) / 256)
        net.forward()
        rows = net.read("detections")[0, 0]
        rows = rows[rows[:, 2] >= MIN_SCORE]
        pictures.append(draw(image, rows, truth.labels[:, 0], truth.boxes))
    sheet(pictures).save(args.sheet)
    print(args.sheet)


if __name__ == "__main__":
    main()
