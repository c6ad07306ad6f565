"""Files of snapshots have a checksum: damage is found, and other programs read on as ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.proto import (
    NetParameter,
    SolverState,
    array_to_blob,
    blob_to_array,
    read_model,
    read_state,
    read_weights,
    stated_checksum,
    write_state,
    write_weights,
)

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
MODELS = ("net.caffemodel", "net.caffemodel.h5")
STATES = ("net.solverstate", "net.solverstate.h5")


def write(path: Path) -> Callable[[Path], Any]:
    """Write a file as snapshots do; returns what reads it."""
    if path.name in MODELS:
        net = NetParameter(name="n")
        net.layer.add(name="ip", type="InnerProduct").blobs.append(array_to_blob(VALUES))
        write_weights(path, net, checksum=True)
        return read_weights
    state = SolverState(iter=7, learned_net="net.caffemodel", osucaffe=b"own", current_step=1)
    state.history.append(array_to_blob(VALUES))
    state.model_checksum = 0xFFFFFFFE
    write_state(path, state, checksum=True)
    return read_state


@pytest.mark.parametrize("name", MODELS + STATES)
def test_each_flipped_bit_is_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    read = write(path)
    whole, good = path.read_bytes(), str(read(path))
    assert stated_checksum(path) is not None
    length, found = len(whole), 0
    for at in {*range(0, length, max(1, length // 60)), length - 1}:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        try:
            assert str(read(path)) == good  # where the checksum itself is no longer one
        except UserError:
            found += 1
    assert found > 40
    path.write_bytes(whole[:-60] + bytes([whole[-60] ^ 1]) + whole[-59:])
    with pytest.raises(UserError, match="is not what its checksum says"):
        read(path)


@pytest.mark.parametrize("name", MODELS + STATES)
def test_a_file_that_is_cut_short_anywhere_is_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    read = write(path)
    whole, good = path.read_bytes(), str(read(path))
    found = 0
    for length in range(0, len(whole), 1 if len(whole) < 500 else 97):
        path.write_bytes(whole[:length])
        try:
            assert str(read(path)) == good  # an HDF5 file that lacks some of its checksum only
        except UserError:
            found += 1
    assert found


def test_who_changes_a_message_leaves_no_wrong_checksum(tmp_path: Path) -> None:
    """A reader with another schema keeps the field that it does not know, at the end."""
    path = tmp_path / "net.caffemodel"
    write(path)
    message = NetParameter.FromString(path.read_bytes())
    message.layer[0].blobs[0].data[3] = -1
    path.write_bytes(message.SerializeToString())
    assert stated_checksum(path) is None
    assert blob_to_array(read_weights(path).layer[0].blobs[0])[0, 3] == -1


def test_who_changes_an_hdf5_file_cuts_its_checksum_off(tmp_path: Path) -> None:
    path = tmp_path / "net.caffemodel.h5"
    write(path)
    with h5py.File(path) as file:
        assert np.array_equal(file["data/ip/0"], VALUES)
    assert stated_checksum(path) is not None
    with h5py.File(path, "r+") as file:
        file["data/ip/0"][0, 3] = -1
    assert stated_checksum(path) is None
    assert blob_to_array(read_weights(path).layer[0].blobs[0])[0, 3] == -1


def test_what_reads_a_model_whole_does_not_keep_the_checksum(tmp_path: Path) -> None:
    path = tmp_path / "net.caffemodel"
    write(path)
    model = read_model(path)
    write_weights(tmp_path / "plain.caffemodel", model)
    assert path.read_bytes().endswith((tmp_path / "plain.caffemodel").read_bytes())
    assert stated_checksum(tmp_path / "plain.caffemodel") is None


@pytest.mark.parametrize("name", STATES)
def test_a_state_names_the_checksum_of_its_model(tmp_path: Path, name: str) -> None:
    read = write(tmp_path / name)
    assert read(tmp_path / name).model_checksum == 0xFFFFFFFE


def test_devices_have_none() -> None:
    assert stated_checksum("/dev/null") is None
    with pytest.raises(UserError, match="cannot read it"):
        stated_checksum("/none")
