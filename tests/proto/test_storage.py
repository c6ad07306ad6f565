"""Checks that files are written whole or not at all, and that what is read is what it should be."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.proto import (
    NetParameter,
    SolverState,
    array_to_blob,
    read_weights,
    write_mean,
    write_state,
    write_text,
    write_weights,
)

FullDisk = Callable[[int], AbstractContextManager[None]]
LARGE = np.zeros(300_000, np.float32)


def large_net() -> NetParameter:
    net = NetParameter()
    net.layer.add(name="a").blobs.append(array_to_blob(LARGE))
    return net


WRITERS: dict[str, Callable[[Path], None]] = {
    "net.caffemodel": lambda path: write_weights(path, large_net()),
    "net.caffemodel.h5": lambda path: write_weights(path, large_net()),
    "x.solverstate": lambda path: write_state(path, SolverState(history=[array_to_blob(LARGE)])),
    "x.solverstate.h5": lambda path: write_state(
        path, SolverState(iter=1, history=[array_to_blob(LARGE)])
    ),
    "mean.binaryproto": lambda path: write_mean(path, LARGE.reshape(3, 100, 1000)),
    "net.prototxt": lambda path: write_text(path, NetParameter(name="n" * 1_000_000)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, full_disk: FullDisk, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"old")
    with full_disk(100_000), pytest.raises(UserError, match=f"{name}: cannot write it: "):
        WRITERS[name](path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot write it: No such file or directory"):
        WRITERS[name](tmp_path / "none" / name)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_replaced(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"old")
    WRITERS[name](path)
    assert path.stat().st_size > 100_000
    assert os.listdir(tmp_path) == [name]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("name", ["lenet_iter_200.caffemodel", "h5lenet_iter_200.caffemodel.h5"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_a_file_that_is_cut_short(tmp_path: Path, formats: Path, name: str, share: float) -> None:
    content = (formats / name).read_bytes()
    path = tmp_path / "net.caffemodel"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UserError, match=r"net\.caffemodel: .*(empty|cut short|damaged|no layers)"):
        read_weights(path)
