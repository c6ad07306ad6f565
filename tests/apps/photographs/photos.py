"""Pictures in class folders, made for tests: each class has its colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np

COLOURS = {"bird": (110, 120, 155), "cat": (150, 115, 105), "dog": (115, 145, 115)}


def make_photos(folder: Path, count: int = 30, noise: float = 40, exif: bool = False) -> Path:
    """Write so many of each class to a folder, none square, of three kinds of files.

    exif: every other one lies on its side, and says so.
    """
    from PIL import Image

    rng = np.random.default_rng(1)
    for name, colour in COLOURS.items():
        inner = folder / name / "more"
        inner.mkdir(parents=True)
        for at in range(count):
            values = np.array(colour) + rng.normal(0, noise, (70 + at, 100 - at, 3))
            kind = (".jpg", ".png", ".JPEG")[at % 3]
            picture = Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))
            tags = Image.Exif()
            if exif and at % 2:
                tags[0x0112] = 6
            picture.save(inner / f"a photo {at}{kind}", exif=tags)
    return folder
