"""Checks the reading of solvers and means, and that files are written whole or not at all."""

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import lmdb
import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.proto import (
    BlobProto,
    Datum,
    NetParameter,
    NetWeights,
    SolverParameter,
    SolverState,
    array_to_blob,
    read_mean,
    read_solver,
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


def test_solver(tmp_path: Path) -> None:
    path = tmp_path / "my_solver.prototxt"
    path.write_text('net: "a.prototxt" solver_type: NESTEROV snapshot_prefix: "x/y"')
    assert read_solver(path) == SolverParameter(
        net="a.prototxt", type="Nesterov", snapshot_prefix="x/y"
    )


def test_snapshots_are_named_after_the_solver_when_it_names_none(tmp_path: Path) -> None:
    path = tmp_path / "my.solver.prototxt"
    path.write_text("base_lr: 1")
    assert read_solver(path).snapshot_prefix == str(tmp_path / "my.solver")
    path.write_text(f'snapshot_prefix: "{tmp_path}"')
    assert read_solver(path).snapshot_prefix == str(tmp_path / "my.solver")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base_lr: fast", ":1:10: couldn't parse float: fast"),
        ('solver_type: SGD type: "SGD"', ": both solver_type and type"),
        ("net_param { layers { layer { type: 'x' } } }", ': old layer "" is of unknown type "x"'),
    ],
)
def test_solver_errors_name_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "solver.prototxt"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_solver(path)
    assert str(error.value).startswith(f"{path}{message}")


def read_values(database: Path, copy: Path) -> list[bytes]:
    """The values of a copy of an LMDB: a process may open none twice, and others may have."""
    shutil.copytree(database, copy)
    with (
        lmdb.open(str(copy), readonly=True, lock=False) as data,
        data.begin() as transaction,
    ):
        return [value for _, value in transaction.cursor()]


def test_mean_is_that_of_the_images(tmp_path: Path, formats: Path) -> None:
    mean = read_mean(formats / "mnist200_mean.binaryproto")
    values = read_values(formats / "mnist200_lmdb", tmp_path / "copy")
    images = [np.frombuffer(Datum.FromString(value).data, np.uint8) for value in values]
    assert len(images) == 200
    assert mean.shape == (1, 28, 28)
    assert mean.dtype == np.float32
    assert np.allclose(mean.ravel(), np.mean(images, axis=0), rtol=1e-6)


def test_mean_is_written_as_caffe_writes_it(tmp_path: Path, formats: Path) -> None:
    reference = formats / "mnist200_mean.binaryproto"
    write_mean(tmp_path / "mean.binaryproto", read_mean(reference))
    assert (tmp_path / "mean.binaryproto").read_bytes() == reference.read_bytes()


def test_mean_in_the_new_form(tmp_path: Path) -> None:
    mean = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for array in (mean, mean[None], mean.astype(np.float64)):
        (tmp_path / "m").write_bytes(array_to_blob(array).SerializeToString())
        read = read_mean(tmp_path / "m")
        assert np.array_equal(read, mean)
        assert read.dtype == np.float32


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\x2a\xffabc", "not a mean file"),
        (BlobProto(num=1, channels=1, height=2, width=2, data=[1]).SerializeToString(), "1 values"),
        (array_to_blob(np.zeros((2, 3), np.float32)).SerializeToString(), "is of shape 2x3"),
        (array_to_blob(np.zeros((2, 1, 3, 3))).SerializeToString(), "is of shape 2x1x3x3"),
    ],
)
def test_what_is_no_mean(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.binaryproto").write_bytes(content)
    with pytest.raises(UserError, match=rf"m\.binaryproto: .*{message}"):
        read_mean(tmp_path / "m.binaryproto")


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, full_disk: FullDisk, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"old")
    with full_disk(100_000), pytest.raises(UserError, match=f"{name}: cannot write it: "):
        WRITERS[name](path)
    assert path.read_bytes() == b"old"
    with pytest.raises(UserError, match="cannot write it: No such file or directory"):
        WRITERS[name](tmp_path / "none" / name)
    assert os.listdir(tmp_path) == [name]
    WRITERS[name](path)
    assert path.stat().st_size > 100_000
    assert os.listdir(tmp_path) == [name]
    os.umask(mask := os.umask(0))
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("name", ["lenet_iter_200.caffemodel", "h5lenet_iter_200.caffemodel.h5"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_a_file_that_is_cut_short(tmp_path: Path, formats: Path, name: str, share: float) -> None:
    content = (formats / name).read_bytes()
    path = tmp_path / "net.caffemodel"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UserError, match=r"net\.caffemodel: .*(empty|cut short|damaged|no layers)"):
        read_weights(path)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (150, "cut short at byte 150: what begins at byte 5 needs 283 more; copy it again"),
        (8, "cut short at byte 8: what begins at byte 5 needs 1 more"),
        (4, "cut short at byte 4: what begins at byte 0 needs 1 more"),
    ],
)
def test_a_file_that_is_cut_short_says_where(tmp_path: Path, keep: int, message: str) -> None:
    net = NetWeights(name="net")
    net.layer.add(name="ip", type="InnerProduct").blobs.add(data=np.ones(100, np.float32))
    content = net.SerializeToString()
    assert len(content) == 433
    path = tmp_path / "net.caffemodel"
    path.write_bytes(content[:keep])
    with pytest.raises(UserError, match=f"net.caffemodel: not a model file .*, or {message}"):
        read_weights(path)


def test_a_file_of_something_else_is_not_said_to_be_cut(tmp_path: Path) -> None:
    path = tmp_path / "net.caffemodel"
    for content in (b"\x89PNG and more", b"\x0a\x03abc\xa2\x06\x02\x0f\x0f"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"not a model file .*, or damaged or cut short$"):
            read_weights(path)
