"""Owns decoding JPEGs on the GPU, by NVIDIA's nvImageCodec, into batches that lie there."""

from __future__ import annotations

import importlib
import math
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg

from ....errors import UserError
from ...cores import usable_cores
from ...records import Part
from ...tensor import Shape

if TYPE_CHECKING:
    from ..backend import Cuda

# Smooth chroma, as libjpeg interpolates it: else colours differ wherever they change.
_OPTIONS = ":fancy_upsampling=1"


class Decoder:
    """Decodes JPEGs on a backend's GPU: each thread with a stream of its own, beside the others.

    Raises UserError where nvImageCodec, or the nvJPEG that it needs, is missing.
    """

    def __init__(self, backend: Cuda) -> None:
        self._backend = backend
        self._runtime = backend.cupy.cuda.runtime
        # CUDA's own stream of each thread. It is never destroyed: images free their memory on the
        # stream that they were decoded on, and Python's collector ends others before the images.
        self._stream = backend.cupy.cuda.Stream.ptds
        self._codec = codec = import_codec()
        # Pixels as they are stored, whatever EXIF says of turning them: as Caffe reads them.
        self._params = {
            channels: codec.DecodeParams(
                apply_exif_orientation=False, color_spec=colours, sample_format=order
            )
            for channels, colours, order in (
                (1, codec.ColorSpec.GRAY, codec.SampleFormat.I_Y),
                (3, codec.ColorSpec.SRGB, codec.SampleFormat.I_BGR),
            )
        }
        self._local = threading.local()
        self._check()

    def allocate(self, shape: Shape) -> Any:
        """Memory on the GPU for a batch: uint8 of this shape."""
        memory = self._backend.allocate(math.prod(shape)).reshape(shape)
        self._backend.synchronize()  # what had it before may be at work on another stream
        return memory

    def decode(
        self, jpegs: Sequence[memoryview], parts: Sequence[Part], places: Sequence[int], batch: Any
    ) -> list[bool]:
        """Decode parts of JPEGs to places of a batch; returns, for each, whether it is done.

        batch: uint8 (N, height, width, channels) of `allocate`'s; three channels come blue first.
        """
        mine = self._mine()
        _, height, width, channels = batch.shape
        start, row = int(batch.data.ptr), width * channels
        sources = [self._codec.CodeStream(np.frombuffer(jpeg, np.uint8)) for jpeg in jpegs]
        mine.images += [None] * (len(sources) - len(mine.images))
        images = mine.decoder.decode(
            sources,
            images=mine.images[: len(sources)],  # to decode into them again: no memory is taken
            params=self._params[channels],
            cuda_stream=self._stream.ptr,
        )
        done = []
        for number, (image, part, place) in enumerate(zip(images, parts, places, strict=True)):
            done.append(image is not None and image.shape == (*part.extents, channels))
            if not done[-1]:
                continue
            mine.images[number] = image
            view = image.__cuda_array_interface__
            pitch = view["strides"][0] if view.get("strides") else image.shape[1] * channels
            (top, left), (to_top, to_left) = part.source, part.target
            self._runtime.memcpy2DAsync(
                start + (place * height + to_top) * row + to_left * channels,
                row,
                view["data"][0] + top * pitch + left * channels,
                pitch,
                part.size[1] * channels,
                part.size[0],
                self._runtime.memcpyDeviceToDevice,
                self._stream.ptr,
            )
        self._stream.synchronize()
        return done

    def put(self, image: np.ndarray, place: int, batch: Any) -> None:
        """Copy a decoded image (height, width, channels) to a place of a batch."""
        self._backend.device.use()  # each thread has a current device of its own
        kind = self._runtime.memcpyHostToDevice
        address = int(batch.data.ptr) + place * image.nbytes
        self._runtime.memcpyAsync(address, image.ctypes.data, image.nbytes, kind, self._stream.ptr)
        self._stream.synchronize()

    def _mine(self) -> Any:
        """What the calling thread decodes with."""
        if not hasattr(self._local, "decoder"):
            device, codec = self._backend.device, self._codec
            device.use()  # each thread has a current device of its own
            self._local.images = []
            # One after the other in this order, each with all that the one before left; none on
            # the CPU: what no GPU decodes is left to those who name it when it is damaged.
            kinds = codec.BackendKind
            order = (kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU)
            self._local.decoder = codec.Decoder(
                device_id=device.id,
                max_num_cpu_threads=usable_cores(),
                backends=[codec.Backend(kind) for kind in order],
                options=_OPTIONS,
            )
        return self._local

    def _check(self) -> None:
        """UserError where nvImageCodec has no decoder that works: it says so of no JPEG."""
        jpeg = simplejpeg.encode_jpeg(np.zeros((16, 16, 1), np.uint8), colorspace="GRAY")
        whole = Part((16, 16), (0, 0), (0, 0), (16, 16))
        if self.decode([memoryview(jpeg)], [whole], [0], self.allocate((1, 16, 16, 1))) != [True]:
            raise UserError(
                f"--decode gpu: nvImageCodec decodes no JPEG on GPU {self._backend.device.id}: "
                'pip install "osucaffe[decode13]" (or [decode12] for an older driver) brings the '
                "nvJPEG that it needs; or leave it out"
            )
        self._local = threading.local()  # this thread only asked


def import_codec() -> Any:
    """nvImageCodec's module. UserError names what to install where it cannot be loaded."""
    # What cannot be decoded is named by the record; its own messages would only count it.
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    try:
        return importlib.import_module("nvidia.nvimgcodec")
    except ImportError as error:
        raise UserError(
            f"--decode gpu needs nvImageCodec ({str(error).strip().splitlines()[0]}): "
            'pip install "osucaffe[decode13]" (or [decode12] for an older driver)'
        ) from None
