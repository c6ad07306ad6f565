"""LMDBs: reading (also of what C++ Caffe wrote), checks, writing; damage is a message, never a
signal, a hang or another traceback."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from osucaffe.data.databases.database import open_database, record_key, write_database
from osucaffe.data.databases.lmdb_database import LmdbDatabase
from osucaffe.errors import UserError
from tests.data.records import FORMATS, read_records


@pytest.fixture
def many(tmp_path):
    records = [(record_key(i), b"%d" % i * (1 + i % 7)) for i in range(1000)]
    write_database(tmp_path / "many_lmdb", records)
    return tmp_path / "many_lmdb", records


def test_reads_what_caffe_wrote_in_key_order():
    keys = [key for key, _ in read_records(FORMATS / "mnist200_lmdb")]
    assert keys == [record_key(i) for i in range(200)]
    keys = [key for key, _ in read_records(FORMATS / "raw6_lmdb")]
    assert keys == [record_key(i, f"{i}.jpg") for i in range(6)]


def test_any_range_of_records_in_any_order(many):
    path, records = many
    database = open_database(path)
    for start, stop in [(999, 1000), (0, 1), (63, 65), (64, 128), (900, 1000), (500, 900), (3, 70)]:
        found = database.read(start, stop)
        assert [(bytes(k), bytes(v)) for k, v in found] == records[start:stop]
    for start, stop in [(0, 0), (-1, 3), (990, 1001)]:
        with pytest.raises(IndexError):
            database.read(start, stop)


@pytest.mark.parametrize("name", ["mnist200_lmdb", "raw6_lmdb", "jpeg6_lmdb", "many"])
def test_single_values_are_views_of_the_file(name, many):
    """Small values and large ones, which LMDB keeps in pages of their own."""
    path = many[0] if name == "many" else FORMATS / name
    database = open_database(path)
    records = read_records(path)
    assert list(database.keys()) == [key for key, _ in records]
    for number in (0, len(records) - 1, 3):
        assert (database.key(number), database.value(number)) == records[number]
    assert database.value(1).readonly


def test_writing_replaces_a_database_and_nothing_else(many, tmp_path):
    path, _ = many
    old = open_database(path)
    assert write_database(path, [(b"a", b"1"), (b"b", b"2")]) == 2
    assert read_records(path) == [(b"a", b"1"), (b"b", b"2")]
    [(_, value)] = old.read(999, 1000)  # who has the old one open still reads the old one
    assert bytes(value) == b"999" * 6
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(UserError, match="mine exists and is not an LMDB"):
        write_database(tmp_path / "mine", [(b"a", b"1")])
    assert sorted(item.name for item in tmp_path.iterdir()) == ["many_lmdb", "mine"]


def test_writing_is_all_or_nothing(tmp_path):
    def records():
        yield b"a", b"1"
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        write_database(tmp_path / "x_lmdb", records())
    with pytest.raises(ValueError, match="b'a' does not come after"):
        write_database(tmp_path / "x_lmdb", [(b"b", b"1"), (b"a", b"1")])
    assert list(tmp_path.iterdir()) == []


def test_writing_more_than_the_first_map_holds(tmp_path):
    size = 1 << 20
    count = write_database(
        tmp_path / "x_lmdb", ((record_key(i), bytes([i]) * size) for i in range(70)), batch=10
    )
    database = open_database(tmp_path / "x_lmdb")
    assert count == len(database) == 70
    [(_, value)] = database.read(69, 70)
    assert bytes(value) == bytes([69]) * size


@pytest.mark.parametrize("keep", [0, 100, 4096, 8000, 8192, -5000, -1])
def test_a_truncated_file_is_refused_before_it_is_mapped(many, keep):
    path, _ = many
    file = path / "data.mdb"
    whole = file.read_bytes()
    file.unlink()
    file.write_bytes(whole[:keep])
    with pytest.raises(UserError, match=r"many_lmdb") as caught:
        open_database(path)
    assert any(word in str(caught.value) for word in ("truncated", "empty", "not an LMDB file"))
    if keep in (8192, -5000, -1):
        assert f"{len(whole):,}" in str(caught.value)


def test_what_is_no_database(tmp_path):
    with pytest.raises(UserError, match="nowhere does not exist"):
        open_database(tmp_path / "nowhere")
    (tmp_path / "file").write_text("hello")
    with pytest.raises(UserError, match="file is not an LMDB"):
        open_database(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="folder is not an LMDB"):
        open_database(tmp_path / "folder")
    (tmp_path / "folder" / "data.mdb").write_bytes(b"hello " * 5000)
    with pytest.raises(UserError, match=r"data\.mdb is not an LMDB file"):
        open_database(tmp_path / "folder")
    write_database(tmp_path / "empty", [])
    with pytest.raises(UserError, match="empty has no records"):
        open_database(tmp_path / "empty")


@pytest.mark.parametrize("value_size", [50, 5000])
def test_pages_that_hold_nothing_may_lack_at_the_end(tmp_path, value_size):
    # LMDB does not write pages that one transaction took and freed, but counts them.
    path = tmp_path / "x_lmdb"
    write_database(path, [(record_key(i), bytes(value_size)) for i in range(2000)], batch=2000)
    file = path / "data.mdb"
    content = bytearray(file.read_bytes())
    for meta in (0, 4096):
        last_page = struct.unpack_from("<Q", content, meta + 136)[0]
        struct.pack_into("<Q", content, meta + 136, last_page + 3)
    file.unlink()
    file.write_bytes(content)
    records = read_records(path)
    assert [key for key, _ in records] == [record_key(i) for i in range(2000)]
    assert all(len(value) == value_size for _, value in records)
    for cut in (4096, 3 * 4096, len(content) // 2):
        file.unlink()
        file.write_bytes(content[:-cut])
        with pytest.raises(UserError, match="truncated"):
            open_database(path)


SIZES = {"small": 150, "large": 9000, "mixed": 0}
"""Of a value: several lie on a page; each has pages of its own; both."""


def make(path: Path, kind: str) -> bytes:
    lengths = [SIZES[kind] or (60, 3000, 12)[i % 3] for i in range(700)]
    write_database(path, [(record_key(i), bytes([i % 251]) * n) for i, n in enumerate(lengths)])
    return (path / "data.mdb").read_bytes()


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("left", [0, 8192, -1])
def test_a_file_that_shrinks_while_it_is_read(kind: str, left: int, tmp_path: Path) -> None:
    size = len(make(tmp_path / "x_lmdb", kind))
    database = open_database(tmp_path / "x_lmdb")
    assert isinstance(database, LmdbDatabase)
    database.value(3)
    os.truncate(tmp_path / "x_lmdb" / "data.mdb", size // 3 if left < 0 else left)
    reads = [database.read, lambda _, stop: database.value(stop - 1)]
    for read in [*reads, database.rows] if SIZES[kind] else reads:  # rows are of one length
        with pytest.raises(UserError, match="become shorter"):
            read(600, 640)
    if left == 0:
        with pytest.raises(UserError, match="has changed"):
            database.check()


def branches_in_a_circle(pages: np.ndarray, leaf: int) -> None:
    [branch] = np.flatnonzero(pages.view("<u2")[:, 5] == 1)
    words = pages[branch].view("<u2")
    for offset in words[8 : words[6] // 2]:
        words[offset // 2] = branch


def an_empty_level(pages: np.ndarray, leaf: int) -> None:
    branches = pages.view("<u2")[:, 5] == 1
    pages[branches, 12] = 17  # where the offsets of its nodes end: within the first


def a_lost_meta_page(pages: np.ndarray, leaf: int) -> None:
    pages[1] = 0  # what the other says is an earlier state


def a_meta_page_twice(pages: np.ndarray, leaf: int) -> None:
    pages[0] = pages[1]


def a_shorter_record(pages: np.ndarray, leaf: int) -> None:
    pages[leaf, int(pages[leaf].view("<u2")[8])] -= 9


def a_record_twice(pages: np.ndarray, leaf: int) -> None:
    offsets = pages[leaf].view("<u2")[8:]
    offsets[1] = offsets[0]


@pytest.mark.parametrize(
    "damage",
    [branches_in_a_circle, an_empty_level, a_lost_meta_page, a_meta_page_twice, a_shorter_record,
     a_record_twice],
)  # fmt: skip
def test_what_could_be_read_but_is_not_what_was_written(
    damage: Callable[[np.ndarray, int], None], tmp_path: Path
) -> None:
    whole = bytearray(make(tmp_path / "x_lmdb", "small"))
    pages = np.frombuffer(whole, np.uint8).reshape(-1, 4096)
    damage(pages, int(np.flatnonzero(pages.view("<u2")[:, 5] == 2)[0]))
    (tmp_path / "x_lmdb" / "data.mdb").write_bytes(whole)
    told = "in a circle" if damage is branches_in_a_circle else r"LMDB .*x_lmdb is damaged: "
    with pytest.raises(UserError, match=told):
        open_database(tmp_path / "x_lmdb").read(0, 700)
