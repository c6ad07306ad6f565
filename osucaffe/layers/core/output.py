"""HDF5Output, which writes blobs to a file."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from ...errors import UserError, reason
from ...proto.hdf5 import write_hdf5
from ..base import Blobs, Layer, Program, Shape, Shapes, register

_LISTS = 1 << 16
"""Bytes that the lists of chunks may take, besides an eighth of the values."""


@register("HDF5Output")
class HDF5Output(Layer):
    """Write each batch after those before it, as data and label, to the HDF5 file file_name."""

    bottoms = (2, 2)
    tops = (0, 0)
    no_gradient = (0, 1)

    def setup(self, bottom: Shapes) -> Shapes:
        self.path = Path(self.param.hdf5_output_param.file_name)
        self.require("hdf5_output_param", file_name="name a file")
        if not bottom[0] or bottom[0][:1] != bottom[1][:1]:
            self.fail("bottom[1]", f"{bottom[1]} is not of the batch of bottom[0], {bottom[0]}")
        shapes = dict(zip(("data", "label"), bottom, strict=True))
        with self.blame("hdf5_output_param.file_name"):
            if self.path.exists() and not self.path.is_file():
                raise UserError(f"{self.path}: is not a regular file")
            write_hdf5(self.path, partial(self._make, shapes=shapes))
        return []

    def _make(self, file: h5py.File, shapes: dict[str, Shape]) -> None:
        self._blocks = []  # of each: the rows of a row of chunks, and its bytes
        for name, (_, *rest) in shapes.items():
            dataset = file.create_dataset(name, (0, *rest), "float32", maxshape=(None, *rest))
            rows, *others = dataset.chunks
            across = math.prod(-(-size // chunk) for size, chunk in zip(rest, others, strict=True))
            self._blocks.append((rows, across * math.prod(dataset.chunks) * dataset.dtype.itemsize))

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.host([blob.data for blob in bottom], [], function=self._append)

    def _append(self, values: list[np.ndarray], _: list[np.ndarray]) -> None:
        try:
            _reserve(self.path, sum(map(_needed, values, self._blocks)))
            with h5py.File(self.path, "r+") as file:
                for name, batch in zip(("data", "label"), values, strict=True):
                    dataset = file[name]
                    dataset.resize(len(dataset) + len(batch), axis=0)
                    dataset[-len(batch) :] = batch
        except (OSError, RuntimeError) as error:
            text = f"{self.path}: cannot write it: {reason(error)}"
            self.fail("hdf5_output_param.file_name", text)


def _needed(batch: np.ndarray, block: tuple[int, int]) -> int:
    """The most bytes that a batch takes in a data set of these rows of chunks."""
    rows, size = block
    return (len(batch) // rows + 2) * size


def _reserve(path: Path, size: int) -> None:
    """OSError where the disk has no room for that many bytes more: when the library meets a full
    disk, it may end the process. It gives back what it does not need."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        try:
            os.posix_fallocate(file.fileno(), end, size + size // 8 + _LISTS)
        except OSError:
            file.truncate(end)
            raise
