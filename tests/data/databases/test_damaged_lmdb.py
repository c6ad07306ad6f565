"""Damaged LMDBs, and files that shrink while they are read, are messages: never a signal, a hang or
a traceback of another kind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from osucaffe.data.databases.database import open_database, record_key, write_database
from osucaffe.data.databases.lmdb_database import LmdbDatabase
from osucaffe.errors import UserError

SIZES = {"small": 150, "large": 9000, "mixed": 0}
"""Of a value: several lie on a page; each has pages of its own; both."""


def make(path: Path, kind: str) -> bytes:
    lengths = [SIZES[kind] or (60, 3000, 12)[i % 3] for i in range(700)]
    write_database(path, [(record_key(i), bytes([i % 251]) * n) for i, n in enumerate(lengths)])
    return (path / "data.mdb").read_bytes()


def use(path: Path) -> bool:
    """Read all of it in every way. False where it was refused with a message."""
    with contextlib.suppress(UserError):
        database = open_database(path)
        for start in range(0, len(database), 64):
            stop = min(start + 64, len(database))
            assert len(database.read(start, stop)) == stop - start
            database.rows(start, stop)
        database.value(len(database) - 1)
        return len(list(database.keys())) == len(database)
    return False


@pytest.mark.parametrize("kind", SIZES)
def test_any_damage_is_a_message(kind: str, tmp_path: Path) -> None:
    whole = make(tmp_path / "x_lmdb", kind)
    assert use(tmp_path / "x_lmdb")
    random = np.random.default_rng(1)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        page = 4096 * int(random.integers(len(whole) // 4096))
        for _ in range(int(random.integers(1, 9))):  # mostly what says where things lie
            at = page + int(random.choice([random.integers(64), random.integers(4096)]))
            damaged[at] = int(random.choice([0, 1, 2, 4, 0x7F, 0x80, 0xFF, damaged[at] ^ 1]))
        if random.random() < 0.2:
            del damaged[int(random.integers(len(whole))) :]
        elif random.random() < 0.2:  # a page in the place of another
            other = 4096 * int(random.integers(len(whole) // 4096))
            damaged[page : page + 4096] = whole[other : other + 4096]
        (tmp_path / "x_lmdb" / "data.mdb").write_bytes(damaged)
        refused += not use(tmp_path / "x_lmdb")
    assert 15 < refused < 150


def test_branches_that_lead_in_a_circle(tmp_path: Path) -> None:
    whole = bytearray(make(tmp_path / "x_lmdb", "small"))
    pages = np.frombuffer(whole, np.uint8).reshape(-1, 4096)
    [branch] = np.flatnonzero(pages.view("<u2")[:, 5] == 1)
    words = pages[branch].view("<u2")
    for offset in words[8 : words[6] // 2]:
        words[offset // 2] = branch
    (tmp_path / "x_lmdb" / "data.mdb").write_bytes(whole)
    with pytest.raises(UserError, match="in a circle"):
        open_database(tmp_path / "x_lmdb").read(0, 1)


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
    [an_empty_level, a_lost_meta_page, a_meta_page_twice, a_shorter_record, a_record_twice],
)
def test_what_could_be_read_but_is_not_what_was_written(
    damage: Callable[[np.ndarray, int], None], tmp_path: Path
) -> None:
    whole = bytearray(make(tmp_path / "x_lmdb", "small"))
    pages = np.frombuffer(whole, np.uint8).reshape(-1, 4096)
    damage(pages, int(np.flatnonzero(pages.view("<u2")[:, 5] == 2)[0]))
    (tmp_path / "x_lmdb" / "data.mdb").write_bytes(whole)
    with pytest.raises(UserError, match=r"LMDB .*x_lmdb is damaged: "):
        open_database(tmp_path / "x_lmdb").read(0, 700)
