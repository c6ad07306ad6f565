"""Solver states, binary and HDF5, against those that C++ Caffe wrote; checksums of snapshots."""

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
    blob_shape,
    blob_to_array,
    find_learned_net,
    read_model,
    read_state,
    read_weights,
    stated_checksum,
    write_state,
    write_weights,
)

SHAPES = [(20, 1, 5, 5), (20,), (50, 20, 5, 5), (50,), (500, 800), (500,), (10, 500), (10,)]
FILES = {
    "lenet_iter_200.solverstate": "lenet_iter_200.caffemodel",
    "h5lenet_iter_200.solverstate.h5": "h5lenet_iter_200.caffemodel.h5",
}


@pytest.mark.parametrize("name", FILES)
def test_the_reference(formats: Path, name: str) -> None:
    state = read_state(formats / name)
    assert (state.iter, state.current_step, state.learned_net) == (200, 0, FILES[name])
    assert [blob_shape(blob) for blob in state.history] == SHAPES
    assert all(blob_to_array(blob).any() for blob in state.history)
    assert not state.HasField("osucaffe")
    assert find_learned_net(formats / name, state.learned_net) == formats / FILES[name]


def test_files_are_written_as_caffe_writes_them(tmp_path: Path, formats: Path) -> None:
    reference = formats / "lenet_iter_200.solverstate"
    write_state(tmp_path / "x.solverstate", read_state(reference))
    assert (tmp_path / "x.solverstate").read_bytes() == reference.read_bytes()
    reference = formats / "h5lenet_iter_200.solverstate.h5"
    write_state(tmp_path / "x.solverstate.h5", read_state(reference))
    with h5py.File(reference) as theirs, h5py.File(tmp_path / "x.solverstate.h5") as ours:
        assert sorted(ours) == sorted(theirs) == ["current_step", "history", "iter", "learned_net"]
        assert sorted(ours["history"]) == sorted(theirs["history"])
        for name in (
            "current_step",
            "iter",
            "learned_net",
            *(f"history/{i}" for i in theirs["history"]),
        ):
            assert ours[name].id.get_type() == theirs[name].id.get_type()
            assert ours[name].shape == theirs[name].shape
            assert np.array_equal(ours[name][()], theirs[name][()])


@pytest.mark.parametrize("name", ["x.solverstate", "x.solverstate.h5"])
def test_what_our_own_solver_adds_comes_back(tmp_path: Path, name: str) -> None:
    state = SolverState(iter=2**31 - 1, learned_net="ä/b.caffemodel", current_step=3)
    state.history.extend(array_to_blob(np.full(i, i, np.float32)) for i in range(1, 13))
    for own in (b"any\0bytes\xff", b""):
        state.osucaffe = own
        write_state(tmp_path / name, state)
        assert read_state(tmp_path / name) == state


def test_finding_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "moved").mkdir()
    state = tmp_path / "moved" / "x.solverstate"
    beside = tmp_path / "moved" / "x.caffemodel"
    named = Path("snapshots/x.caffemodel")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf'"{named}" is not there, and not at {beside}'):
        find_learned_net(state, str(named))
    beside.touch()
    assert find_learned_net(state, str(named)) == beside
    named.touch()
    assert find_learned_net(state, str(named)) == named
    with pytest.raises(UserError, match="names no model"):
        find_learned_net(state, "")


def test_what_is_no_state(tmp_path: Path, formats: Path) -> None:
    names = ["lenet_iter_200.caffemodel", "h5lenet_iter_200.caffemodel.h5", "v1.prototxt"]
    for name in names:
        with pytest.raises(UserError, match=rf"{name}: .*not a solver state"):
            read_state(formats / name)
    with pytest.raises(UserError, match="none: cannot read it"):
        read_state(tmp_path / "none")


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
    assert name in MODELS or read(path).model_checksum == 0xFFFFFFFE
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


def test_devices_have_none() -> None:
    assert stated_checksum("/dev/null") is None
    with pytest.raises(UserError, match="cannot read it"):
        stated_checksum("/none")
