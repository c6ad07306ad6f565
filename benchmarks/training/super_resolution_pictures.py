"""Parts of held-out photographs side by side: original, bicubic, and the nets' of super_resolution.

`python -m benchmarks.training.super_resolution_pictures --data data/photographs --weights
build/super_resolution Aqua BytheWater` writes one picture, a row for each photograph. Each row
shows the part with most detail, every pixel as a square of 2, with the PSNR of this part in dB.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from osucaffe.apps.super_resolution.quality import psnr
from osucaffe.apps.super_resolution.upscale_files import read
from osucaffe.apps.super_resolution.upscale_score import busiest
from osucaffe.data.pictures.bicubic import enlarge, shrink
from osucaffe.proto import caffe_pb2

from .super_resolution_sides import SCALE, enlarger

WEIGHTS = {"osucaffe": "osucaffe.caffemodel", "PyTorch": "torch.caffemodel"}
ZOOM, GAP, LINE = 2, 8, 22
Make = Callable[[np.ndarray], np.ndarray]


def main() -> None:
    """Enlarge and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("names", nargs="+", metavar="NAME", help="held-out photographs: NAME of val/NAME.png")
    add("--data", type=Path, default=Path("data/photographs"), help="of photographs.py")
    add("--weights", type=Path, default=Path("build/super_resolution"), help="of super_resolution")
    add("--gpu", help="the GPU (default: the CPU)")
    add("--precision", choices=("fp32", "tf32", "bf16"), default="fp32", help="of a GPU")
    add("--part", type=int, default=92, help="pixels to a side of what is shown")
    add("--out", default="build/super_resolution/pictures.png", help="the file to write")
    args = parser.parse_args()
    makes: dict[str, Make] = {"bicubic": lambda small: enlarge(small, SCALE)}
    for name, file in WEIGHTS.items():
        if (args.weights / file).exists():  # one side may have been left out
            weights = caffe_pb2.NetParameter.FromString((args.weights / file).read_bytes())
            makes[name] = enlarger(vars(args), weights)
    rows = [row(read(args.data / "val" / f"{name}.png").pixels, makes, args.part)
            for name in args.names]  # fmt: skip
    drawn(rows).save(args.out, optimize=True)
    print(f"wrote {args.out}: {Path(args.out).stat().st_size / 1000:.0f} kB")


def row(original: np.ndarray, makes: dict[str, Make], side: int) -> list[tuple[str, np.ndarray]]:
    """The part of most detail of the original and of what is made of it when it was shrunk, with
    what to write above: each (side, side), or less where the photograph is smaller."""
    small = shrink(original, SCALE)
    height, width = (min(side, extent) for extent in original.shape[1:])
    top, left = busiest(original.astype(np.float32).mean(axis=0), height, width)
    views: list[tuple[str, np.ndarray]] = []
    parts = {"original": original} | {name: make(small) for name, make in makes.items()}
    for name, image in parts.items():
        part = image[:, top : top + height, left : left + width]
        title = f"{name}, {psnr(part, views[0][1], 0):.1f} dB" if views else name
        views.append((title, part))
    return views


def drawn(rows: list[list[tuple[str, np.ndarray]]]) -> Image.Image:
    """The rows as one picture."""
    font: Any = ImageFont.load_default(14)
    widths = [max(part[index][1].shape[2] for part in rows) for index in range(len(rows[0]))]
    heights = [each[0][1].shape[1] for each in rows]
    size = (
        sum(widths) * ZOOM + GAP * (len(widths) - 1),
        sum(heights) * ZOOM + LINE * len(rows) + GAP * (len(rows) - 1),
    )
    picture = Image.new("RGB", size, (255, 255, 255))
    draw = ImageDraw.Draw(picture)
    top = 0
    for each, height in zip(rows, heights, strict=True):
        for index, (title, part) in enumerate(each):
            left = sum(widths[:index]) * ZOOM + index * GAP
            draw.text((left + 2, top + 2), title, (32, 32, 36), font)
            pixels = part.repeat(ZOOM, axis=1).repeat(ZOOM, axis=2)[::-1].transpose(1, 2, 0)
            picture.paste(Image.fromarray(np.ascontiguousarray(pixels)), (left, top + LINE))
        top += LINE + height * ZOOM + GAP
    return picture


if __name__ == "__main__":
    main()
