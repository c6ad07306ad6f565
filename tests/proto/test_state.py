"""Checks solver states, binary and HDF5, against those that C++ Caffe 1.0 wrote."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.proto import (
    SolverState,
    array_to_blob,
    blob_shape,
    blob_to_array,
    find_learned_net,
    read_state,
    write_state,
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


def test_binary_is_written_as_caffe_writes_it(tmp_path: Path, formats: Path) -> None:
    reference = formats / "lenet_iter_200.solverstate"
    write_state(tmp_path / "x.solverstate", read_state(reference))
    assert (tmp_path / "x.solverstate").read_bytes() == reference.read_bytes()


def test_hdf5_is_written_as_caffe_writes_it(tmp_path: Path, formats: Path) -> None:
    reference = formats / "h5lenet_iter_200.solverstate.h5"
    write_state(tmp_path / "x.solverstate.h5", read_state(reference))
    with h5py.File(reference) as theirs, h5py.File(tmp_path / "x.solverstate.h5") as ours:
        assert sorted(ours) == sorted(theirs) == ["current_step", "history", "iter", "learned_net"]
        for name in ("current_step", "iter", "learned_net"):
            assert ours[name].id.get_type() == theirs[name].id.get_type()
            assert ours[name].shape == theirs[name].shape
            assert ours[name][()] == theirs[name][()]
        assert sorted(ours["history"]) == sorted(theirs["history"])
        for i in theirs["history"]:
            assert ours["history"][i].id.get_type() == theirs["history"][i].id.get_type()
            assert np.array_equal(ours["history"][i], theirs["history"][i])


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


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.0001, 0.5, 0.99])
def test_a_state_that_is_cut_short(tmp_path: Path, formats: Path, name: str, share: float) -> None:
    content = (formats / name).read_bytes()
    path = tmp_path / name
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UserError, match=rf"{name}: .*(empty|cut short|damaged|no iteration)"):
        read_state(path)
