"""HDF5Output writes what passed through the net."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.errors import UserError

from ..nets import build, inputs

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


def test_behind_layers_that_keep_another_layout(tmp_path) -> None:
    """oneDNN's convolution and pooling give their tops blocks of channels."""
    path = tmp_path / "out.h5"
    net = build(
        inputs({"x": (2, 3, 14, 14), "l": (2,)})
        + """layer { name: "conv" type: "Convolution" bottom: "x" top: "c" convolution_param {
          num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } } }
        layer { name: "pool" type: "Pooling" bottom: "c" top: "p"
          pooling_param { kernel_size: 2 stride: 2 } }
        layer { name: "out" type: "HDF5Output" bottom: "p" bottom: "l" """
        f'hdf5_output_param {{ file_name: "{path}" }} }}',
        Cpu(),
    )
    net.write("x", np.random.default_rng(0).standard_normal((2, 3, 14, 14)))
    net.forward()
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["data"][:], net.read("p"))
        assert file["data"].shape == (2, 16, 6, 6)
        assert np.ptp(file["data"]) > 0


def test_a_file_that_cannot_be_written_is_named(tmp_path) -> None:
    with pytest.raises(UserError, match=r'layer "out" \(HDF5Output\), hdf5_output_param.file_name'):
        build(text(tmp_path / "missing" / "out.h5"), Cpu())


def test_a_full_disk_ends_in_a_message(tmp_path, full_disk) -> None:
    """The library would end the process when it closes what it could not write."""
    path = tmp_path / "out.h5"
    net = build(text(path), Cpu())
    net.forward()
    size = path.stat().st_size
    with full_disk(size), pytest.raises(UserError, match="cannot write it: File too large"):
        net.forward()
    with h5py.File(path) as file:
        assert len(file["data"]) == len(file["label"]) == 3


def test_what_is_no_file_is_refused() -> None:
    with pytest.raises(UserError, match="/dev/null: is not a regular file"):
        build(text("/dev/null"), Cpu())
