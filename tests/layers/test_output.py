"""HDF5Output writes what passed through the net."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.errors import UserError

from .nets import build, inputs

SHAPES = {"x": (3, 2, 4), "l": (3,)}


def text(path) -> str:
    return inputs(SHAPES) + (
        'layer { name: "out" type: "HDF5Output" bottom: "x" bottom: "l" '
        f'hdf5_output_param {{ file_name: "{path}" }} }}'
    )


@pytest.mark.parametrize("inspectable", [False, True])
def test_batches_lie_behind_one_another(tmp_path, inspectable: bool) -> None:
    path = tmp_path / "out.h5"
    net = build(text(path), Cpu(), inspectable=inspectable)
    x = np.arange(48, dtype=np.float32).reshape(2, 3, 2, 4)
    for batch in x:
        net.write("x", batch)
        net.write("l", batch[:, 0, 0])
        net.forward()
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["data"][:], x.reshape(6, 2, 4))
        np.testing.assert_array_equal(file["label"][:], x.reshape(6, 2, 4)[:, 0, 0])


def test_a_file_that_cannot_be_written_is_named(tmp_path) -> None:
    with pytest.raises(UserError, match=r'layer "out" \(HDF5Output\), hdf5_output_param.file_name'):
        build(text(tmp_path / "missing" / "out.h5"), Cpu())
