"""Owns a stand-in for nvImageCodec, and pictures to decode."""

from __future__ import annotations

import io
from collections.abc import Callable
from enum import Enum
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import simplejpeg

CODEC = "nvidia.nvimgcodec"
PAD = 5


class Image:
    """As nvImageCodec's, on host memory: rows lie apart."""

    def fill(self, pixels: np.ndarray) -> None:
        height, width, channels = self.shape = pixels.shape
        self.rows = np.zeros((height, width * channels + PAD), np.uint8)
        self.rows[:, :-PAD] = pixels.reshape(height, -1)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        strides = (self.rows.strides[0], self.shape[2], 1)
        return {"data": (self.rows.ctypes.data, False), "strides": strides, "shape": self.shape}


class Codec(ModuleType):
    """As much of nvImageCodec as is used. It decodes by simplejpeg, and notes how many."""

    BackendKind = Enum("BackendKind", ["CPU_ONLY", "GPU_ONLY", "HYBRID_CPU_GPU", "HW_GPU_ONLY"])
    ColorSpec = Enum("ColorSpec", ["GRAY", "SRGB"])
    SampleFormat = Enum("SampleFormat", ["I_Y", "I_RGB", "I_BGR"])
    Backend = staticmethod(lambda kind: kind)
    CodeStream = staticmethod(lambda array: array.tobytes())

    def __init__(self) -> None:
        super().__init__(CODEC)
        self.works: Callable[[bytes], bool] = lambda jpeg: True
        self.decoded = 0
        self.DecodeParams = dict
        self.Decoder = lambda **options: _Decoder(self, **options)


class _Decoder:
    def __init__(self, codec: Codec, device_id: int, backends: list[Any], **_: Any) -> None:
        assert codec.BackendKind.CPU_ONLY not in backends
        self.codec = codec

    def decode(
        self, sources: list[bytes], *, images: list[Image | None], params: dict, cuda_stream: int
    ) -> list[Image | None]:
        assert len(images) == len(sources)
        assert params["apply_exif_orientation"] is False
        order = {"I_Y": "GRAY", "I_BGR": "BGR", "I_RGB": "RGB"}[params["sample_format"].name]
        return [
            self._decode(source, image or Image(), order)
            for source, image in zip(sources, images, strict=True)
        ]

    def _decode(self, source: bytes, image: Image, order: str) -> Image | None:
        if not self.codec.works(source):
            return None
        self.codec.decoded += 1
        image.fill(simplejpeg.decode_jpeg(source, colorspace=order))
        return image


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
