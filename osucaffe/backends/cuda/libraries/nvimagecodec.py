"""Owns decoding JPEGs on the GPU, by NVIDIA's nvImageCodec, into batches that lie there."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import simplejpeg

from ....errors import UserError
from ...cores import usable_cores
from ...records import Part
from ...tensor import Shape
from .nvimagecodec_api import GPU_ONLY, HW_GPU_ONLY, HYBRID, Codec, Decoding, Source, Target

if TYPE_CHECKING:
    from ..backend import Cuda

# Smooth chroma, as libjpeg interpolates it: else colours differ wherever they change.
_OPTIONS = ":fancy_upsampling=1"


_ENGINE_RATES = {90: 34_800 * 256 * 256}
"""Pixels a second that the engines of a GPU decode, by its compute capability: measured."""
_CALLS = 3
"""That decode at once. Beside the training of AlexNet on an H200 one decodes 19,300 images of 60 kB
a second, two 38,600, and four 21,400: their streams share hardware queues with those that train."""
_CALL_THREADS = 4
"""Of the host, that work for a call."""
_log = logging.getLogger("osucaffe")


def find_engine(backend: Cuda) -> Decoder | None:
    """What decodes with the GPU's engines only; None where it has none that are known. Raises
    UserError where nvImageCodec, or the nvJPEG that it needs, is missing."""
    if backend.properties.compute_capability not in _ENGINE_RATES:
        _log.info(
            "--decode both: %s has no JPEG engines that are known, the readers decode alone",
            backend.properties.name,
        )
        return None
    return Decoder(backend, engines_only=True)


class Lane(NamedTuple):
    """What one call at a time decodes with."""

    decoding: Decoding
    stream: Any
    beside: list[Any]
    """Memory on the GPU for images of which a part is wanted, once there were such."""


class Decoder:
    """Decodes JPEGs on a backend's GPU, for any threads: a few batches at once.

    engines_only: not on its multiprocessors. Raises UserError where nvImageCodec, or the nvJPEG
    that it needs, is missing.
    """

    takes_all = True

    def __init__(self, backend: Cuda, *, engines_only: bool = False) -> None:
        self._backend, self._engines_only = backend, engines_only
        self.rate: float = _ENGINE_RATES.get(backend.properties.compute_capability, 0)
        self._pinned: set[int] = set()
        self._runtime = backend.cupy.cuda.runtime
        self._codec = load()
        self._calls, self._lanes = threading.BoundedSemaphore(_CALLS), list[Lane]()
        self._copies = backend.cupy.cuda.Stream(non_blocking=True)
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
        arrays = [np.frombuffer(jpeg, np.uint8) for jpeg in jpegs]
        begins = np.array([each.__array_interface__["data"][0] for each in arrays], np.int64)
        sizes = np.array([len(each) for each in arrays])
        return self.decode_at(begins, sizes, np.array(parts), np.array(places), batch)

    def decode_at(
        self,
        begins: np.ndarray,
        sizes: np.ndarray,
        parts: np.ndarray,
        places: np.ndarray,
        batch: Any,
    ) -> list[bool]:
        """As `decode`, of JPEGs of so many bytes at these addresses of the host's memory. parts:
        (N, 4, 2)."""
        _, height, width, channels = batch.shape
        start, row = int(batch.data.ptr), width * channels
        sources = list(map(Source, begins.tolist(), sizes.tolist()))
        targets = [
            Target(address, (height, width), row)
            for address in (start + places * (height * row)).tolist()
        ]
        whole = Part((height, width), (0, 0), (0, 0), (height, width))
        others = np.flatnonzero((parts != whole).any(axis=(1, 2))).tolist()
        offset = 0
        for number in others:  # they are decoded beside the batch, and a part of each is copied
            high, wide = parts[number, 0].tolist()
            targets[number] = Target(offset, (high, wide), wide * channels)
            offset += high * wide * channels
        with self._lane() as lane:
            if others:
                address = self._beside(lane, offset)
                for number in others:
                    _, extents, apart = targets[number]
                    targets[number] = Target(address + targets[number].address, extents, apart)
            done = lane.decoding.decode(sources, targets, channels, lane.stream.ptr)
            for number in others:
                if not done[number]:
                    continue
                address, _, apart = targets[number]
                _, (top, left), (to_top, to_left), (high, wide) = parts[number].tolist()
                self._runtime.memcpy2DAsync(
                    start + (int(places[number]) * height + to_top) * row + to_left * channels,
                    row,
                    address + top * apart + left * channels,
                    apart,
                    wide * channels,
                    high,
                    self._runtime.memcpyDeviceToDevice,
                    lane.stream.ptr,
                )
            lane.stream.synchronize()
        return done

    def _beside(self, lane: Lane, nbytes: int) -> int:
        """The address of so many bytes of the lane's own."""
        if not lane.beside or lane.beside[0].nbytes < nbytes:
            lane.beside[:] = [self.allocate((2 * nbytes,))]  # others may be larger
        return int(lane.beside[0].data.ptr)

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
        self._backend.device.use()
        kind = self._runtime.memcpyHostToDevice
        address = int(batch.data.ptr) + place * (batch.nbytes // len(batch))
        memory = image.ctypes.data
        self._runtime.memcpyAsync(address, memory, image.nbytes, kind, self._copies.ptr)
        self._copies.synchronize()

    @contextlib.contextmanager
    def _lane(self) -> Iterator[Lane]:
        """What the calling thread decodes with, when one is free."""
        self._backend.device.use()  # each thread has a current device of its own
        with self._calls:
            lane = self._lanes.pop() if self._lanes else self._new_lane()
            try:
                yield lane
            finally:
                self._lanes.append(lane)

    def _new_lane(self) -> Lane:
        # None on the CPU: what no GPU decodes is left to those who name it when it is damaged.
        kinds = [HW_GPU_ONLY] if self._engines_only else [HW_GPU_ONLY, GPU_ONLY, HYBRID]
        threads = _CALL_THREADS if self._engines_only else usable_cores()
        device = self._backend.device.id
        decoding = Decoding(self._codec, device, kinds, threads=threads, options=_OPTIONS)
        return Lane(decoding, self._backend.cupy.cuda.Stream(non_blocking=True), [])

    def _check(self) -> None:
        """UserError where nvImageCodec has no decoder that works: it says so of no JPEG."""
        jpeg = simplejpeg.encode_jpeg(np.zeros((256, 256, 3), np.uint8), colorspace="RGB")
        whole = Part((256, 256), (0, 0), (0, 0), (256, 256))
        memory = self.allocate((1, 256, 256, 3))
        if self.decode([memoryview(jpeg)], [whole], [0], memory) != [True]:
            raise UserError(
                f"--decode: nvImageCodec decodes no JPEG on GPU {self._backend.device.id}: "
                'pip install "osucaffe[decode13]" (or [decode12] for an older driver) brings the '
                "nvJPEG that it needs; or leave it out"
            )


@functools.cache
def load() -> Codec:
    """The library, with what decodes JPEGs on GPUs. UserError names what to install."""
    return Codec("nvjpeg")
