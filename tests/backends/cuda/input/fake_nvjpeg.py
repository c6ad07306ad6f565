"""A stand-in for nvJPEG, and pictures to decode."""

from __future__ import annotations

import ctypes
import io

import numpy as np
import pytest
import simplejpeg

from osucaffe.backends.cuda.libraries import nvjpeg


class FakeLane:
    """Decodes as nvJPEG does, by simplejpeg, to memory of the host: of a batch what is in front of
    a JPEG that it cannot decode."""

    kinds = (nvjpeg.HARDWARE, nvjpeg.GPU_HYBRID)
    refused: tuple[bytes, ...] = ()
    decoded = 0

    def __init__(self, backend: int) -> None:
        if backend not in self.kinds:
            raise nvjpeg.NvjpegError("the GPU has no engines")

    def decode(
        self, begins: np.ndarray, sizes: np.ndarray, images: np.ndarray, channels: int, stream: int
    ) -> bool:
        for begin, size, image in zip(begins.tolist(), sizes.tolist(), images, strict=True):
            jpeg = ctypes.string_at(begin, size)
            if jpeg in self.refused:
                return False
            try:
                pixels = simplejpeg.decode_jpeg(jpeg, colorspace="BGR" if channels == 3 else "GRAY")
            except ValueError:
                return False
            type(self).decoded += 1
            start, apart = int(image["channel"][0]), int(image["pitch"][0])
            for number, row in enumerate(pixels):
                ctypes.memmove(start + number * apart, row.ctypes.data, row.nbytes)
        return True


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth colours with some noise, (height, width, 3)."""
    random = np.random.default_rng(seed)
    rows, columns = np.ogrid[:height, :width]
    waves = [np.sin(rows / a + columns / b) for a, b in random.uniform(5, 15, (3, 2))]
    image = 128 + 90 * np.stack(waves, -1) + random.normal(0, 6, (height, width, 3))
    return image.clip(0, 255).astype(np.uint8)


def jpeg(height: int, width: int, seed: int = 0, subsampling: str = "420") -> bytes:
    image = picture(height, width, seed)
    if subsampling == "Gray":
        return simplejpeg.encode_jpeg(image[..., :1].copy(), 90, "GRAY", "Gray")
    return simplejpeg.encode_jpeg(image, 90, "RGB", subsampling)


def other(kind: str, height: int = 40, width: int = 48) -> bytes:
    """An image that is no JPEG, one of inks, or a progressive one."""
    pillow = pytest.importorskip("PIL.Image")
    image = pillow.fromarray(picture(height, width, 9))
    stream = io.BytesIO()
    if kind == "progressive":
        image.save(stream, "JPEG", progressive=True)
    elif kind == "CMYK":
        image.convert(kind).save(stream, "JPEG")
    else:
        image.save(stream, kind)
    return stream.getvalue()
