"""`osucaffe upscale --score`: PSNR and SSIM of enlarged images, and pictures side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...api.images import to_image
from ...cli import output
from ...cli.images import save_image
from ...data.pictures.bicubic import enlarge, shrink
from ...errors import UserError
from .options import Upscale
from .quality import psnr, ssim
from .tiling import Enlarger
from .upscale_files import read

_MIN_SIDE = 11
"""Pixels to a side, without the border, that SSIM's window needs."""
_GAP = 8
_PART = 320
"""Pixels to a side, at most, of the part of an original that a picture shows."""


def score(jobs: list[tuple[Path, Path]], enlarger: Enlarger, options: Upscale) -> None:
    """Print the table of originals and their means, and write the pictures."""
    scale = enlarger.scale
    rows = []
    width = max(len("mean"), *(len(source.name) for source, _ in jobs))
    if not options.json:
        print(f"{'':{width}}        bicubic              net")
        print(f"{'':{width}}  PSNR dB    SSIM   PSNR dB    SSIM    gain")
    for source, target in jobs:
        original = _crop_to_multiple(read(source).pixels, scale, source)
        small = shrink(original, scale)
        made = (enlarge(small, scale), enlarger.enlarge(small))
        figures = [figure(image, original, scale) for image in made for figure in (psnr, ssim)]
        rows.append(figures)
        _draw(target, small, *made, original)
        if not options.json:
            print(_line(source.name, width, figures))
    means = np.mean(rows, axis=0).tolist()
    if not options.json:
        print(_line("mean", width, means))
        print(f"pictures (small, bicubic, net, original) in {options.output}")
        return
    names = ("bicubic_psnr", "bicubic_ssim", "psnr", "ssim")
    output.print_json(
        {
            "images": [
                {"image": str(source)} | dict(zip(names, figures, strict=True))
                for (source, _), figures in zip(jobs, rows, strict=True)
            ],
            "mean": dict(zip(names, means, strict=True)),
        }
    )


def _crop_to_multiple(image: np.ndarray, scale: int, path: Path) -> np.ndarray:
    """An image cropped to a multiple of the scale."""
    height, width = (extent // scale * scale for extent in image.shape[1:])
    if min(height, width) < _MIN_SIDE + 2 * scale:
        raise UserError(
            f"{path}: {image.shape[2]}x{image.shape[1]} is too small for --score: it takes "
            f"{_MIN_SIDE + 2 * scale} pixels to each side"
        )
    return image[:, :height, :width]


def _line(name: str, width: int, figures: list[float]) -> str:
    bicubic, bicubic_ssim, net, net_ssim = figures
    return (
        f"{name:{width}}  {bicubic:7.3f}  {bicubic_ssim:.4f}   {net:7.3f}  {net_ssim:.4f}"
        f"  {net - bicubic:+6.3f}"
    )


def _draw(
    path: Path, small: np.ndarray, bicubic: np.ndarray, net: np.ndarray, original: np.ndarray
) -> None:
    """Write the part of the four with most detail as one picture, the small one's pixels large."""
    scale = original.shape[1] // small.shape[1]
    blocks = small.repeat(scale, axis=1).repeat(scale, axis=2)
    height, width = (min(_PART, extent) for extent in original.shape[1:])
    top, left = busiest(original.astype(np.float32).mean(axis=0), height, width)
    views = [
        image[:, top : top + height, left : left + width]
        for image in (blocks, bicubic, net, original)
    ]
    gap = np.full((3, height, _GAP), 255, np.uint8)
    row = np.concatenate([part for view in views for part in (view, gap)][:-1], axis=2)
    save_image(to_image(row), path, "PNG")


def busiest(values: np.ndarray, height: int, width: int) -> tuple[int, int]:
    """The corner of the part of this size with the largest differences between neighbours."""
    change = np.abs(np.diff(values, axis=0))[:, 1:] + np.abs(np.diff(values, axis=1))[1:]
    total = np.pad(change.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    # `change` has a row and a column less than the values.
    down, across = height - 1, width - 1
    sums = total[down:, across:] - total[:-down, across:] - total[down:, :-across]
    sums += total[:-down, :-across]
    top, left = np.unravel_index(int(sums.argmax()), sums.shape)
    return int(top), int(left)
