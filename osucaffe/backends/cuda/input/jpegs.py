"""Decoding JPEGs on the GPU, by nvJPEG, into batches that lie there."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import simplejpeg

from ....errors import UserError
from ..gpu import Gpu
from ..libraries import nvjpeg
from ..libraries.nvjpeg import GPU_HYBRID, HARDWARE, IMAGE, NvjpegError
from .upload import BatchMemory

_LANES = {HARDWARE: 2, GPU_HYBRID: 4}
"""That decode at once. On an H200 one has the engines decode 54,700 images of 60 kB a second while
nothing else runs, but 36,000 beside the training of AlexNet, and two 47,400; three are slower. Of
the multiprocessors one gets 14,200, two get 24,400 and four 39,200."""
_log = logging.getLogger("osucaffe")


def find_decoder(backend: Gpu, *, always: bool) -> Decoder | None:
    """What decodes with the GPU's engines; None where it has none, or there is no nvJPEG.

    always: else with the multiprocessors. UserError where there is no nvJPEG, or it fails.
    """
    backend.device.use()
    for kind in (HARDWARE, GPU_HYBRID) if always else (HARDWARE,):
        try:
            return Decoder(backend, kind)
        except NvjpegError as error:
            said = error
        except UserError as error:
            if always:
                raise
            _log.info("The CPU decodes JPEGs: %s", error)
    if always:
        raise UserError(f"--decode gpu: GPU {backend.device.id} cannot ({said}): leave it out")
    return None


class Turn(NamedTuple):
    """What one call at a time decodes with."""

    lane: nvjpeg.Lane
    stream: Any
    done: Any
    """An event to wait for, asleep."""
    scratch: list[Any]
    """Memory on the GPU for images of which only a part is used, once there were any."""


class Decoder(BatchMemory):
    """Decodes JPEGs on a backend's GPU, for any threads. NvjpegError where it cannot."""

    def __init__(self, backend: Gpu, kind: int) -> None:
        super().__init__(backend, backend.cupy.cuda.Stream(non_blocking=True))
        self._kind, self._uploads = kind, backend.uploads()
        self._turns: list[Turn] = []
        self._free = threading.BoundedSemaphore(_LANES[kind])
        self._check()

    def decode(
        self,
        begins: np.ndarray,
        sizes: np.ndarray,
        parts: np.ndarray,
        places: np.ndarray,
        batch: Any,
    ) -> np.ndarray:
        """Decode parts of JPEGs to places of a batch; returns, for each, whether it is done.

        begins, sizes: addresses in the host's memory, and bytes. parts: a Part of each, (N, 4, 2),
        with the extents that its head says. batch: uint8 (N, height, width, channels) of
        `allocate`'s; three channels come blue first.
        """
        _, height, width, channels = batch.shape
        start, row = int(batch.data.ptr), width * channels
        images = np.zeros(len(begins), IMAGE)
        images["channel"][:, 0] = start + places * (height * row)
        images["pitch"][:, 0] = row
        whole = np.array([(height, width), (0, 0), (0, 0), (height, width)])
        others = np.flatnonzero((parts != whole).any(axis=(1, 2)))
        with self._turn() as turn:
            if len(others):  # decoded to scratch memory, from which a part of each is copied
                extents = parts[others, 0]
                ends = np.cumsum(extents[:, 0] * extents[:, 1] * channels)
                address = self._beside(turn, int(ends[-1]))
                images["channel"][others, 0] = address + np.append(0, ends[:-1])
                images["pitch"][others, 0] = extents[:, 1] * channels
            done = self._decode(turn, begins, sizes, images, channels)
            for number in others.tolist():
                if not done[number]:
                    continue
                address, apart = images["channel"][number, 0], images["pitch"][number, 0]
                _, (top, left), (to_top, to_left), (high, wide) = parts[number].tolist()
                self._runtime.memcpy2DAsync(
                    start + (int(places[number]) * height + to_top) * row + to_left * channels,
                    row,
                    int(address) + top * int(apart) + left * channels,
                    int(apart),
                    wide * channels,
                    high,
                    self._runtime.memcpyDeviceToDevice,
                    turn.stream.ptr,
                )
            turn.done.record(turn.stream)
            turn.done.synchronize()
        return done

    def _decode(
        self, turn: Turn, begins: np.ndarray, sizes: np.ndarray, images: np.ndarray, channels: int
    ) -> np.ndarray:
        """Decode all, or all but those that cannot be: found by halves, as a call does not tell."""
        if turn.lane.decode(begins, sizes, images, channels, turn.stream.ptr):
            return np.ones(len(begins), bool)
        if len(begins) == 1:
            return np.zeros(1, bool)
        half = len(begins) // 2
        done = []
        for some in (slice(half), slice(half, None)):
            turn.stream.synchronize()  # the lane's memory is in use until then, after a failure too
            done.append(self._decode(turn, begins[some], sizes[some], images[some], channels))
        return np.concatenate(done)

    def _beside(self, turn: Turn, nbytes: int) -> int:
        """The address of that many bytes of its own."""
        if not turn.scratch or turn.scratch[0].nbytes < nbytes:
            turn.scratch[:] = [self.allocate((2 * nbytes,))]  # others may be larger
        return int(turn.scratch[0].data.ptr)

    def pin(self, memory: np.ndarray) -> None:
        """Pin memory of the host's that begins with a page and stays."""
        self._backend.device.use()
        self._uploads.pin(memory)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Turn]:
        """What the calling thread decodes with, when it is its turn."""
        self._backend.device.use()  # each thread has a current device of its own
        with self._free:
            turn = self._turns.pop() if self._turns else self._new_turn()
            try:
                yield turn
            finally:
                self._turns.append(turn)

    def _new_turn(self) -> Turn:
        cuda = self._backend.cupy.cuda
        done = cuda.Event(block=True, disable_timing=True)
        return Turn(nvjpeg.Lane(self._kind), cuda.Stream(non_blocking=True), done, [])

    def _check(self) -> None:
        """NvjpegError where it decodes nothing, whatever it has said so far."""
        jpeg = simplejpeg.encode_jpeg(np.zeros((256, 256, 3), np.uint8), colorspace="RGB")
        begins = np.array([np.frombuffer(jpeg, np.uint8).ctypes.data])
        part = np.array([[(256, 256), (0, 0), (0, 0), (256, 256)]])
        memory = self.allocate((1, 256, 256, 3))
        done = self.decode(begins, np.array([len(jpeg)]), part, np.array([0]), memory)
        if not done.all():
            raise NvjpegError("nvJPEG decodes no JPEG")
