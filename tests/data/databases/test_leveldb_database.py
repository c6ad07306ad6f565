"""LevelDBs: the records of an LMDB, written with LevelDB's own library, read and converted."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.cli import main
from osucaffe.data.databases.database import open_database
from osucaffe.errors import UserError
from tests.data.records import FORMATS, read_records
from tests.layers.nets import build

plyvel = pytest.importorskip("plyvel")

RECORDS = FORMATS / "raw6_lmdb"


@pytest.fixture
def level(tmp_path: Path) -> Path:
    """The LMDB's records, many times over, in two batches: some in a table, some in the log."""
    path = tmp_path / "level"
    with plyvel.DB(str(path), create_if_missing=True) as database:
        for repeat in range(30):
            for key, value in read_records(RECORDS):
                database.put(b"%02d%s" % (repeat, key), value)
            if repeat == 20:
                database.compact_range()
    return path


def test_records_are_those_of_the_lmdb(level: Path) -> None:
    database = open_database(level)
    wanted = [(b"%02d%s" % (n, k), v) for n in range(30) for k, v in read_records(RECORDS)]
    assert len(database) == len(wanted) == 180
    assert list(database.keys()) == [key for key, _ in wanted]
    assert read_records(level) == wanted
    for start, stop in ((0, 1), (63, 66), (64, 128), (179, 180)):
        found = database.read(start, stop)
        assert [(bytes(key), bytes(value)) for key, value in found] == wanted[start:stop]
    assert bytes(database.value(77)) == wanted[77][1]
    assert database.key(100) == wanted[100][0]
    assert open_database(level) is database
    with pytest.raises(IndexError):
        database.read(170, 181)


def test_a_data_layer_reads_it(level: Path) -> None:
    text = (
        'layer {{ name: "data" type: "Data" top: "data" top: "label" data_param {{ '
        'source: "{}" batch_size: 4 backend: {} }} transform_param {{ scale: 0.5 }} }}'
    )
    found = []
    for source, backend in ((level, "LEVELDB"), (RECORDS, "LMDB")):
        net = build(text.format(source, backend), Cpu())
        net.forward()
        net.forward()  # records 4 to 7: the first two are 0 and 1 again
        found.append([net.read("data"), net.read("label")])
        net.layers[0].close()
    np.testing.assert_equal(*found)


def test_it_becomes_an_lmdb(
    level: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "convert", str(level), str(tmp_path / "lmdb")]) == 0
    assert "180 records" in capsys.readouterr().out
    assert read_records(tmp_path / "lmdb") == read_records(level)


def test_what_is_wrong_is_said(
    level: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with plyvel.DB(str(level)), pytest.raises(UserError, match="another process has it open; conv"):
        open_database(level)
    with plyvel.DB(str(tmp_path / "none"), create_if_missing=True):
        pass
    with pytest.raises(UserError, match="has no records"):
        open_database(tmp_path / "none")
    table = next(level.glob("*.ldb"))
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    with pytest.raises(UserError, match=r"LevelDB .* is damaged: .*[Cc]orruption"):
        read_records(level)
    monkeypatch.setitem(sys.modules, "plyvel", None)
    with pytest.raises(UserError, match=r'pip install "osucaffe\[leveldb\]"'):
        open_database(level)
