"""HDF5 files are read by the library in a process of its own, as it reads them here; damage to one,
and the end of that process, is told."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.proto import hdf5
from osucaffe.proto.hdf5 import open_hdf5, reading_hdf5

GENERATOR = np.random.default_rng(3)
FILTERS = (
    {},
    {"compression": "gzip"},
    {"compression": "lzf"},
    {"compression": "gzip", "shuffle": True, "fletcher32": True},
    {"compression": "lzf", "shuffle": True, "fletcher32": True},
    {"fletcher32": True},
)
DTYPES = (">f4", "?", "<f4", "f8", "f2", "u1", "<i8", ">i2", "S5")
SHAPES = (((5, 3), (2, 2)), ((7,), (7,)), ((4, 5, 6), (3, 5, 4)), ((0, 3), (1, 3)))


@pytest.mark.parametrize(
    ("version", "dtype"),
    [
        *(("earliest", each) for each in DTYPES),
        *(("latest", each) for each in DTYPES[:2]),
    ],
)
def test_values_are_the_librarys(tmp_path: Path, dtype: str, version: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w", libver=version) as file:
        for number, (filters, (shape, chunks)) in enumerate(itertools.product(FILTERS, SHAPES)):
            values = (GENERATOR.standard_normal(shape) * 50).astype(int).astype(dtype)
            growing = {"chunks": chunks, "maxshape": (None,) * len(shape), **filters}
            file.create_dataset(f"whole{number}", data=values, **growing)
            sparse = file.create_dataset(
                f"sparse{number}", shape, dtype, fillvalue=np.ones((), dtype)[()], **growing
            )
            if values.size:
                sparse[0] = values[0]
        file["contiguous"] = values
    with h5py.File(tmp_path / "x.h5", "r") as file, open_hdf5(tmp_path / "x.h5") as ours:
        assert list(ours) == list(file)
        for name in file:
            found = ours.array(name)
            wanted = file[name][()]
            assert found.dtype == (np.int8 if dtype == "?" else wanted.dtype)
            np.testing.assert_array_equal(found, wanted)
            if dtype != "S5":
                floats = ours.array(name, np.float32)
                assert floats.dtype == np.float32
                np.testing.assert_array_equal(floats, file[name].astype(np.float32)[()])


@pytest.mark.parametrize("filters", [FILTERS[1], *FILTERS[3:]])
def test_a_chunk_that_is_cut_short(tmp_path: Path, filters: dict) -> None:
    """The library ends the process on some of these. (lzf alone cannot tell.)"""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("x", data=np.arange(30.0), chunks=(10,), **filters)
        _, chunk = dataset.id.read_direct_chunk((10,))
    for size in 1, 3, len(chunk) - 1:
        with h5py.File(tmp_path / "x.h5", "r+") as file:
            file["x"].id.write_direct_chunk((10,), chunk[:size])
        with open_hdf5(tmp_path / "x.h5") as ours, pytest.raises(ValueError, match="x: "):
            ours.array("x")


def test_links_and_types_that_are_seldom_met(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w", libver="latest") as file:
        file["g/wide"] = np.arange(3, dtype=np.longdouble)
        file["g/text"] = "told"
        file["g/complex"] = 1j
        file["g/inner/short"] = np.arange(5, dtype=">i2")
        file["g/inner/soft"] = h5py.SoftLink("/g/text")
        for number in range(9):  # more than lie in a group itself
            file[f"g/{number}"] = number
        file["link"] = h5py.SoftLink("g")
        file["other"] = h5py.ExternalLink("/dev/null", "x")
    with open_hdf5(tmp_path / "x.h5") as ours:
        group = ours["link"]
        assert list(group) == [*"012345678", "complex", "inner", "text", "wide"]
        np.testing.assert_array_equal(group.array("wide"), [0, 1, 2])
        assert group.array("text") == group.array("inner/soft") == b"told"
        np.testing.assert_array_equal(group.array("inner/short", np.float32), [0, 1, 2, 3, 4])
        with pytest.raises(ValueError, match="other is a link into another file"):
            ours["other"]
        with pytest.raises(ValueError, match="link/complex: its values are not numbers"):
            group["complex"]


def test_data_of_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(12))
    layout = h5py.VirtualLayout((3,), "int32")
    layout[:] = h5py.VirtualSource(tmp_path / "y.h5", "y", (3,))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        outside = [(str(tmp_path / "secret"), 0, 12)]
        file.create_dataset("external", (3,), "int32", external=outside)
        file.create_virtual_dataset("virtual", layout)
    with open_hdf5(tmp_path / "x.h5") as ours:
        for name in "external", "virtual":
            with pytest.raises(ValueError, match=f"{name}.* in (an)?other file"):
                ours.array(name)


def test_a_group_that_lies_in_itself(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["g/x"] = 1
        file["g/again"] = file["g"]
    with (
        open_hdf5(tmp_path / "x.h5") as ours,
        pytest.raises(ValueError, match="g/again: it lies in itself"),
    ):
        ours["g/again"]


def test_a_file_behind_something_else(tmp_path: Path) -> None:
    """MATLAB's begin with 512 bytes of its own."""
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=1024) as file:
        file["x"] = np.arange(4.0)
    with open_hdf5(tmp_path / "x.h5") as ours:
        np.testing.assert_array_equal(ours.array("x"), [0, 1, 2, 3])


def test_a_process_that_ends_is_told_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a damaged file: the next file is read again. One process serves all files; of those
    that serve files open at the same time only so many stay."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(4.0), chunks=(2,))
    for _ in range(2):
        with open_hdf5(tmp_path / "x.h5") as file:
            os.kill(file._file.library._process.pid, signal.SIGKILL)
            with pytest.raises(ValueError, match="x: the HDF5 library ended with SIGKILL"):
                file.array("x")
    for _ in range(2):
        with open_hdf5(tmp_path / "x.h5") as file:
            assert file.array("x", np.float32).sum() == 6
    assert len(hdf5._idle) == 1
    monkeypatch.setattr(hdf5, "_MAX_IDLE", 2)
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            groups = [stack.enter_context(open_hdf5(tmp_path / "x.h5")) for _ in range(3)]
            libraries = [group._file.library for group in groups]
        assert set(hdf5._idle) < set(libraries)
        assert len(hdf5._idle) == 2
        (closed,) = set(libraries) - set(hdf5._idle)
        assert closed._process.wait(timeout=60) == 0


def test_a_file_that_keeps_the_library_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that lie in one another twice, and so at a million paths. It may compute for less than
    it may in earnest."""
    impatient = tmp_path / "hdf5_process.py"
    text = hdf5._PROGRAM.read_text()
    assert "_MAX_SECONDS = 5" in text
    impatient.write_text(text.replace("_MAX_SECONDS = 5", "_MAX_SECONDS = 1"))
    monkeypatch.setattr(hdf5, "_PROGRAM", impatient)
    monkeypatch.setattr(hdf5, "_idle", [])
    with h5py.File(tmp_path / "x.h5", "w") as file:
        inner = file.create_group("last")
        for number in range(40):
            group = file.create_group(f"g{number}")
            group["a"] = group["b"] = inner
            inner = group
    with (
        pytest.raises(UserError, match="the HDF5 library ended with SIGXCPU"),
        reading_hdf5(tmp_path / "x.h5", "model"),
    ):
        pass
