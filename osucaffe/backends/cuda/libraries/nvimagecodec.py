"""Owns decoding JPEGs on the GPU, by NVIDIA's nvImageCodec, into batches that lie there."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import threading
import weakref
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


_ENGINE_RATES = {90: 34_800 * 256 * 256}
"""Pixels a second that the engines of a GPU decode, by its compute capability: measured."""
_ENGINE_THREADS = 4
"""Of the host, that keep the engines busy."""
_log = logging.getLogger("osucaffe")


def find_engine(backend: Cuda) -> Decoder | None:
    """What decodes with the GPU's engines only; None where it has none that are known, or
    nvImageCodec is missing."""
    if backend.properties.compute_capability not in _ENGINE_RATES:
        return None
    try:
        return Decoder(backend, engines_only=True)
    except UserError as error:
        _log.debug("JPEGs are decoded by the readers alone: %s", error)
        return None


class Decoder:
    """Decodes JPEGs on a backend's GPU: each thread with a stream of its own, beside the others.

    engines_only: not on its multiprocessors. Raises UserError where nvImageCodec, or the nvJPEG
    that it needs, is missing.
    """

    takes_all = True

    def __init__(self, backend: Cuda, *, engines_only: bool = False) -> None:
        self._backend, self._engines_only = backend, engines_only
        self.rate: float = _ENGINE_RATES.get(backend.properties.compute_capability, 0)
        self._pinned: set[int] = set()
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

    def pin(self, memory: np.ndarray) -> None:
        """Pin memory of the host's that begins with a page and stays."""
        address = memory.ctypes.data
        if address not in self._pinned:
            self._backend.device.use()
            self._pinned.add(address)
            unpin = weakref.finalize(memory, self._unpin, address)
            unpin.atexit = False
            with contextlib.suppress(self._runtime.CUDARuntimeError):  # copies are only slower
                self._runtime.hostRegister(address, memory.nbytes, 0)

    def _unpin(self, address: int) -> None:
        self._pinned.discard(address)
        with contextlib.suppress(self._runtime.CUDARuntimeError):
            self._runtime.hostUnregister(address)

    def put(self, image: np.ndarray, place: int, batch: Any) -> None:
        """Copy decoded images (..., height, width, channels) to a place of a batch and those
        behind it."""
        self._backend.device.use()  # each thread has a current device of its own
        kind = self._runtime.memcpyHostToDevice
        address = int(batch.data.ptr) + place * (batch.nbytes // len(batch))
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
            order = [kinds.HW_GPU_ONLY]
            if not self._engines_only:
                order += [kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU]
            self._local.decoder = codec.Decoder(
                device_id=device.id,
                max_num_cpu_threads=_ENGINE_THREADS if self._engines_only else usable_cores(),
                backends=[codec.Backend(kind) for kind in order],
                options=_OPTIONS,
            )
        return self._local

    def _check(self) -> None:
        """UserError where nvImageCodec has no decoder that works: it says so of no JPEG."""
        jpeg = simplejpeg.encode_jpeg(np.zeros((256, 256, 3), np.uint8), colorspace="RGB")
        whole = Part((256, 256), (0, 0), (0, 0), (256, 256))
        memory = self.allocate((1, 256, 256, 3))
        if self.decode([memoryview(jpeg)], [whole], [0], memory) != [True]:
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
