"""Owns a stand-in for nvImageCodec, and pictures to decode."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import simplejpeg

from osucaffe.backends.cuda.libraries import nvimagecodec, nvimagecodec_api
from osucaffe.backends.cuda.libraries.nvimagecodec_api import CPU_ONLY, HW_GPU_ONLY, Source, Target

CODEC = "nvidia.nvimgcodec"


class FakeCodec:
    """Stands for the library and what decodes by it: by simplejpeg, to memory of the host."""

    def __init__(self) -> None:
        self.works: Callable[[bytes], bool] = lambda jpeg: True
        self.decoded = 0

    def decoding(
        self, codec: FakeCodec, device: int, kinds: Sequence[int], *, threads: int, options: str
    ) -> FakeCodec:
        assert codec is self
        assert kinds[0] == HW_GPU_ONLY
        assert CPU_ONLY not in kinds
        return self

    def decode(
        self, sources: Sequence[Source], targets: Sequence[Target], channels: int, stream: int
    ) -> list[bool]:
        return [
            self._decode(ctypes.string_at(*source), target, channels)
            for source, target in zip(sources, targets, strict=True)
        ]

    def _decode(self, jpeg: bytes, target: Target, channels: int) -> bool:
        try:
            height, width, *_ = simplejpeg.decode_jpeg_header(jpeg)
        except ValueError:
            return False
        if (height, width) != target.extents or not self.works(jpeg):
            return False
        self.decoded += 1
        pixels = simplejpeg.decode_jpeg(jpeg, colorspace="BGR" if channels == 3 else "GRAY")
        for number, row in enumerate(pixels):
            ctypes.memmove(target.address + number * target.row, row.ctypes.data, row.nbytes)
        return True


def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nvImageCodec were not installed."""
    monkeypatch.setattr(nvimagecodec_api, "PACKAGE", "osucaffe.no_such_package")
    monkeypatch.setattr(nvimagecodec, "load", lambda: nvimagecodec_api.Codec("nvjpeg"))


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
    """An image that is no JPEG, or one of inks."""
    pillow = pytest.importorskip("PIL.Image")
    image = pillow.fromarray(picture(height, width, 9))
    image.convert("CMYK" if kind == "CMYK" else "RGB").save(
        stream := io.BytesIO(), "JPEG" if kind == "CMYK" else kind
    )
    return stream.getvalue()
