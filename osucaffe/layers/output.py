"""Owns HDF5Output, which writes blobs to a file."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from ..backends.primitives import Program
from ..backends.tensor import Shape
from ..blob import Blob
from .base import Layer, register


@register("HDF5Output")
class HDF5Output(Layer):
    """Write each batch behind those before it, as data and label, to the HDF5 file file_name."""

    bottoms = (2, 2)
    tops = (0, 0)
    no_gradient = (0, 1)

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        self.path = Path(self.param.hdf5_output_param.file_name)
        if not self.param.hdf5_output_param.file_name:
            self.fail("hdf5_output_param.file_name", "is missing")
        if not bottom[0] or bottom[0][:1] != bottom[1][:1]:
            self.fail("bottom[1]", f"{bottom[1]} is not of the batch of bottom[0], {bottom[0]}")
        try:
            with h5py.File(self.path, "w") as file:
                for name, shape in zip(("data", "label"), bottom, strict=True):
                    rest = shape[1:]
                    file.create_dataset(name, (0, *rest), "float32", maxshape=(None, *rest))
        except OSError as error:
            self.fail("hdf5_output_param.file_name", f"{self.path} cannot be written: {error}")
        return []

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
        program.host([blob.data for blob in bottom], [], function=self._append)

    def _append(self, values: list[np.ndarray], _: list[np.ndarray]) -> None:
        with h5py.File(self.path, "r+") as file:
            for name, batch in zip(("data", "label"), values, strict=True):
                dataset = file[name]
                dataset.resize(len(dataset) + len(batch), axis=0)
                dataset[-len(batch) :] = batch
