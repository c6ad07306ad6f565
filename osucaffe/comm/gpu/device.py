"""Owns sums of arrays in device memory, for an MPI library that takes pointers to it.

The kernel is `device.cu`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .kernels import kernel, launch_over


class DeviceMath:
    """What `HostMath` is to arrays in host memory, on the GPU that is current when it is made.

    Kernels run on a stream of its own: what is added is there when `finish` returns.
    """

    native = False
    """The libraries' own collectives are no use: Open MPI's are not CUDA-aware in their
    non-blocking forms (its FAQ, "Which MPI APIs do NOT work with CUDA-aware?")."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._scratch = cupy.empty(0, np.uint8)

    def scratch(self, nbytes: int) -> Any:
        """At least nbytes of memory (uint8); the same memory each time."""
        self._device.use()  # this may be a thread of the background; MPI, too, asks for the device
        if self._scratch.size < nbytes:
            self._scratch = self._cupy.empty(nbytes, np.uint8)
        return self._scratch

    def add(self, target: Any, source: Any) -> None:
        """target += source; 16-bit floats are added in float32 and rounded."""
        function = kernel("device", "add", target.dtype.name)
        arguments = target, source, np.int64(target.size)
        launch_over(function, target.size, arguments, self._stream)

    def finish(self) -> None:
        """Return when all that was added is there."""
        self._stream.synchronize()
