"""Tests of records that stay where the net runs: the batches are those of records that are read."""

from __future__ import annotations

import functools
import logging
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import simplejpeg

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.uploads import Uploads
from osucaffe.data.config import DataConfig
from osucaffe.data.databases.datum import make_datum
from osucaffe.data.resident import cache
from osucaffe.data.streams.source import DatumSource
from osucaffe.errors import UserError
from osucaffe.net import Net
from tests.data.records import write_records
from tests.layers.nets import build

from .test_raw_records import FORMATS, MEAN, SETTINGS, net_of, read_net, taken


def keeping(cache: str = "device", **more: Any) -> dict[str, DataConfig]:
    """What lets a net keep its records, there."""
    return {"data_config": DataConfig(cache=cache, **more)}


def both(make: Any, count: int = 40, name: str = "cached_batch", shuffle: int = 0) -> Net:
    """Compare the batches of two nets of this kind, one that keeps its records and one that does
    not; returns the first."""
    wanted, net = make(**keeping("none", shuffle=shuffle)), make(**keeping(shuffle=shuffle))
    assert name in [call.name for call in net.programs[0]]
    np.testing.assert_equal(taken(net, count), taken(wanted, count))
    for each in net, wanted:
        each.layers[0].close()
    return net


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("shuffle", [0, 1, 4])
@pytest.mark.parametrize(("source", "transform"), SETTINGS)
def test_batches_are_the_same(
    source: str, transform: str, shuffle: int, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_AHEAD", 3)
    monkeypatch.setattr(cache, "_RECORDS_OF_A_PIECE", 5)

    def make(**options: Any) -> Net:
        return read_net(Cpu(), FORMATS / source, transform, phase=phase, **options)

    net = both(make, shuffle=shuffle)
    assert not net.layers[0]._cached.slots.lacking()


def test_lists_of_images(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(5):
        image = random.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        (tmp_path / f"{number}.jpg").write_bytes(simplejpeg.encode_jpeg(image))
    (tmp_path / "list").write_text("".join(f"{n}.jpg {n + 3}\n" for n in range(5)))
    for text in "", "shuffle: true", "shuffle: true rand_skip: 4 is_color: false":
        data = (
            f'type: "ImageData" image_data_param {{ source: "{tmp_path / "list"}" batch_size: 3 '
            f'root_folder: "{tmp_path}/" {text} }}'
        )
        both(functools.partial(net_of, Cpu(), data, "crop_size: 20 mirror: true"))


@pytest.mark.parametrize("room", [1 << 30, 0])
@pytest.mark.parametrize("shuffle", ["true", "false"])
def test_rows_of_hdf5_files(
    shuffle: str, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Uploads, "free_bytes", lambda self: room)
    random = np.random.default_rng(0)
    for name, rows in ("a", 5), ("b", 9), ("c", 2):
        with h5py.File(tmp_path / name, "w") as file:
            file["flat"] = random.normal(size=(rows, 2, 3))
            file["label"] = random.integers(0, 9, rows)
    (tmp_path / "list").write_text("".join(f"{tmp_path / name}\n" for name in "abc"))
    net = f"""layer {{ name: "in" type: "HDF5Data" top: "flat" top: "label"
        hdf5_data_param {{ source: "{tmp_path / "list"}" batch_size: 3 shuffle: {shuffle} }} }}"""
    both(functools.partial(build, net, phase="TRAIN", seed=4), 30, name="cached_rows")


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("where", ["host", "auto"])
def test_decoded_records_stay_with_the_readers(
    where: str, raw: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cpu, "raw_records", raw)
    monkeypatch.setattr(Uploads, "free_bytes", lambda self: 0)  # none on the device
    source, transform = FORMATS / "jpeg6_lmdb", "crop_size: 32 mirror: true force_gray: true"
    wanted = taken(read_net(Cpu(), source, transform, **keeping("none", shuffle=4)), 7)
    net = read_net(Cpu(), source, transform, **keeping(where, shuffle=4))
    found = taken(net, 3)
    assert net.layers[0]._source.decoded.has.all()
    net.layers[0].close()
    monkeypatch.setattr(DatumSource, "_decode", None)
    np.testing.assert_equal(found + taken(net, 4), wanted)
    net.layers[0].close()


@pytest.mark.skipif(sys.platform != "linux", reason="reader processes are Linux's")
def test_reader_processes_share_what_they_keep() -> None:
    source, transform = FORMATS / "jpeg6_lmdb", "crop_size: 32 force_gray: true"
    wanted = taken(read_net(Cpu(), source, transform), 20)
    for where in "host", "device":
        net = read_net(Cpu(), source, transform, **keeping(where, readers=5))
        found = taken(net, 20)
        net.layers[0].close()
        np.testing.assert_equal(found, wanted)


def test_records_that_differ_in_size_are_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    random = np.random.default_rng(0)
    shapes = [(2, 9, 8)] * 30 + [(2, 30, 7), (2, 6, 6), (2, 9, 8)]
    images = [random.integers(0, 256, shape).astype(np.uint8) for shape in shapes]
    write_records(tmp_path / "lmdb", map(make_datum, images, range(len(images))))
    monkeypatch.setattr(cache, "_RECORDS_OF_A_PIECE", 4)
    monkeypatch.setattr(cache, "_AHEAD", 2)
    with caplog.at_level(logging.INFO):
        both(functools.partial(read_net, Cpu(), tmp_path / "lmdb", "crop_size: 6 mirror: true"))
    assert "the one with number 30 has another shape than the first" in caplog.text


@pytest.mark.parametrize("room", [1000, 0])
def test_without_room_they_are_read_anew(
    room: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Uploads, "free_bytes", lambda self: room)
    with caplog.at_level(logging.INFO):
        both(functools.partial(read_net, Cpu(), FORMATS / "mnist200_lmdb", MEAN + "mirror: true"))
    assert "to stay they take 0.157 MB, and" in caplog.text


def test_by_default_those_with_room_stay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Cpu, "raw_records", True)
    for room, name in (400_000, "cached_batch"), (300_000, "transform"):
        monkeypatch.setattr(Uploads, "free_bytes", lambda self, room=room: room)
        with caplog.at_level(logging.INFO):
            net = read_net(Cpu(), FORMATS / "mnist200_lmdb", **keeping("auto"))
        assert name in [call.name for call in net.programs[0]]
        assert ("are free (--cache)" in caplog.text) == (name == "transform")
        taken(net, 1)
    monkeypatch.setattr(Cpu, "raw_records", False)
    net = read_net(Cpu(), FORMATS / "mnist200_lmdb", **keeping("auto"))
    assert "cached_batch" not in [call.name for call in net.programs[0]]


def test_a_bad_record_is_named_in_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [make_datum(np.full((1, 2, 2), i, np.uint8), i) for i in range(40)]
    values[30] = values[30][:-3]
    write_records(tmp_path / "lmdb", values)
    monkeypatch.setattr(cache, "_RECORDS_OF_A_PIECE", 7)
    net = read_net(Cpu(), tmp_path / "lmdb", **keeping())
    taken(net, 4)
    for _ in range(2):
        with pytest.raises(UserError, match=r'record "00000030".*cannot be read'):
            net.forward()
    net.layers[0].close()
