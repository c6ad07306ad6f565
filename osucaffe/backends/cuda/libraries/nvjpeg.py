"""nvJPEG's C interface (nvjpeg.h): what decodes a batch of JPEGs in one call."""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_int, c_uint, c_void_p
from typing import Any

import numpy as np

from ....errors import UserError
from ..runtime.startup import load_cublas
from .wheel import open_library

HARDWARE, GPU_HYBRID = 3, 2
"""By the engines, or by the multiprocessors: nvjpegBackend_t."""
FORMATS = {1: 2, 3: 6}
"""By the number of channels, gray or blue first, interleaved: nvjpegOutputFormat_t."""
SMOOTH = 32
"""Chroma is interpolated as by libjpeg, else colours differ wherever they change:
NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION."""
IMAGE = np.dtype([("channel", np.uint64, 4), ("pitch", np.uint64, 4)])
"""nvjpegImage_t: where the planes begin, and from one row to the next."""
_PACKAGES = {12: "nvidia.nvjpeg", 13: "nvidia.cu13"}


class NvjpegError(RuntimeError):
    """A call that failed."""


class Lane:
    """Decodes batches, one after the other, on the current device. Never freed.

    backend: HARDWARE or GPU_HYBRID. NvjpegError where the GPU has no such thing.
    """

    def __init__(self, backend: int) -> None:
        self._library, self._handle, self._state = load(), c_void_p(), c_void_p()
        self._expected = 0, 0
        # No allocators of ours.
        self._call("CreateEx", c_int(backend), None, None, c_uint(SMOOTH), byref(self._handle))
        self._call("JpegStateCreate", self._handle, byref(self._state))

    def decode(
        self, begins: np.ndarray, sizes: np.ndarray, images: np.ndarray, channels: int, stream: int
    ) -> bool:
        """Decode JPEGs of that many bytes at these addresses of the host's memory, gray or BGR.

        images: IMAGE of each, on the device; they are there when the CUDA stream is. Only pixels
        that the JPEG says it has are written. False if one of them cannot be decoded: then others
        may lack, too.
        """
        begins, sizes = begins.astype(np.uint64), sizes.astype(np.uint64)
        images = np.ascontiguousarray(images)
        if self._expected != (len(begins), channels):  # to say it again waits for the device
            settings = c_int(len(begins)), c_int(1), c_int(FORMATS[channels])
            self._call("DecodeBatchedInitialize", self._handle, self._state, *settings)
            self._expected = len(begins), channels
        pointers = [c_void_p(each.ctypes.data) for each in (begins, sizes, images)]
        status = self._library.nvjpegDecodeBatched(
            self._handle, self._state, *pointers, c_void_p(stream)
        )
        return not status

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"nvjpeg{name}")(*arguments)
        if status:
            raise NvjpegError(f"nvJPEG: {name} ended with status {status}")


@functools.cache
def load() -> ctypes.CDLL:
    """The library. UserError names what to install."""
    major = load_cublas()
    try:
        return open_library(_PACKAGES.get(major, "nvidia"), f"libnvjpeg.so.{major}")
    except OSError as error:
        raise UserError(
            f'decoding on a GPU needs nvJPEG ({error}): pip install "osucaffe[cuda{major}]" brings '
            "it"
        ) from None
