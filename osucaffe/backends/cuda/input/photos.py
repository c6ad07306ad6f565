"""Photos that are scaled on the GPU: uploaded as bytes, beside the computation, they become
input there."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...records import ScaledCrops
from ...tensor import Shape
from ..gpu import Gpu
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch


class DevicePhotos:
    """A PhotoScaler for batches of one shape, (N, bytes): all of it runs on the stream of uploads,
    after each other."""

    def __init__(self, backend: Gpu, crops: ScaledCrops, shape: Shape) -> None:
        channels, height, width = crops.offset.shape
        count, parts = shape[0] * len(crops.crops), len(crops.crops)
        self._backend, self._uploads = backend, backend.uploads()
        self._records = backend.allocate(shape[0] * shape[1])
        self._input = backend.allocate(4 * count * channels * height * width).view(np.float32)
        tables = (backend.upload(table) for table in (crops.crops, crops.mix, crops.offset))
        pixels = count * height * width
        self._step = launch(
            kernel("photos", "scale_photos", CHANNELS=channels),
            blocks_for(pixels),
            [
                int(self._records.data.ptr), *tables, int(self._input.data.ptr),
                pixels, shape[1], parts, *crops.extents, height, width,
            ],
        )  # fmt: skip

    def scale(self, records: np.ndarray) -> Any:
        """See PhotoScaler. Pinned memory is not to change until the stream of uploads has read it,
        which `feed_step` waits for."""
        backend = self._backend
        runtime, stream = backend.cupy.cuda.runtime, backend.upload_stream
        self._uploads.pin(records)
        target, kind = int(self._records.data.ptr), runtime.memcpyHostToDevice
        runtime.memcpyAsync(target, records.ctypes.data, records.nbytes, kind, stream.ptr)
        with backend.on(stream):
            self._step()
        return self._input
