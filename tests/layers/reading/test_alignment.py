"""Tests of data layers of one net that belong together: whatever shuffles them or leaves out
records, an image keeps its label, or the net is refused."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import simplejpeg

from osucaffe.data.config import DataConfig
from osucaffe.data.databases.datum import make_datum
from osucaffe.errors import UserError
from osucaffe.layers.core.python import PythonLayer
from osucaffe.net import Net
from osucaffe.proto import caffe_pb2
from tests.data.records import write_records
from tests.layers.nets import build

COUNT, BATCH, BATCHES = 13, 3, 14


def jpeg(number: int) -> bytes:
    return simplejpeg.encode_jpeg(np.full((8, 8, 3), 4 * number, np.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Records that are their numbers, in an LMDB of raw images, one of JPEGs, three HDF5 files and
    a list of images."""
    return write(tmp_path)


def write(folder: Path, bad: dict[str, int] | None = None, count: int = COUNT) -> Path:
    """bad: of "jpegs" and "list", the number of a damaged record."""
    folder.mkdir(exist_ok=True)
    kind, bad, numbers = caffe_pb2.Datum, bad or {}, range(count)
    raw = [make_datum(np.full((1, 1, 1), n, np.uint8), n) for n in numbers]
    write_records(folder / "raw", raw)
    content = {n: jpeg(n) for n in numbers}
    damaged = {name: content | {number: b"\xff\xd8 no"} for name, number in bad.items()}
    coded = damaged.get("jpegs", content)
    datums = [kind(data=coded[n], label=n, encoded=True).SerializeToString() for n in numbers]
    write_records(folder / "jpegs", datums)
    for number, part in enumerate(np.split(np.arange(count), [2, 9])):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["value"] = part[:, None].astype(np.float32)
    (folder / "files").write_text("".join(f"{folder}/{number}.h5\n" for number in range(3)))
    for n, each in damaged.get("list", content).items():
        (folder / f"{n}.jpg").write_bytes(each)
    (folder / "list").write_text("".join(f"{folder}/{n}.jpg {n}\n" for n in numbers))
    return folder


def data(source: Path, more: str = "", batch: int = BATCH) -> str:
    name = source.name
    return f"""layer {{ name: "{name}" type: "Data" top: "{name} image" top: "{name}"
        data_param {{ source: "{source}" batch_size: {batch} backend: LMDB {more} }} }} """


def hdf5(folder: Path, more: str = "") -> str:
    return f"""layer {{ name: "hdf5" type: "HDF5Data" top: "value"
        hdf5_data_param {{ source: "{folder}/files" batch_size: {BATCH} {more} }} }} """


def images(folder: Path, more: str = "") -> str:
    return f"""layer {{ name: "list" type: "ImageData" top: "list image" top: "list"
        image_data_param {{ source: "{folder}/list" batch_size: {BATCH} {more} }} }} """


def every(folder: Path) -> str:
    return data(folder / "raw") + data(folder / "jpegs") + hdf5(folder) + images(folder)


LABELS = "raw", "jpegs", "value", "list"


def make(text: str, phase: str = "TRAIN", **config: Any) -> Net:
    return build(text, phase=phase, data_config=DataConfig(**config))


def taken(net: Net, labels: tuple[str, ...] = LABELS, batches: int = BATCHES) -> list[int]:
    """The records that come, the same ones in all of these blobs."""
    found = []
    for _ in range(batches):
        net.forward()
        rows = [net.read(name).ravel().astype(int).tolist() for name in labels]
        assert all(row == rows[0] for row in rows)
        found += rows[0]
    for layer in net.layers:
        getattr(layer, "close", int)()
    return found


@pytest.mark.parametrize(
    ("cache", "block", "readers"),
    [("none", 1, 1), ("none", 4, 2), ("host", 4, 2), ("device", 4, 2)],
)
def test_all_are_shuffled_alike(folder: Path, cache: str, block: int, readers: int) -> None:
    found = taken(make(every(folder), shuffle=block, cache=cache, readers=readers))
    epochs = [found[at : at + COUNT] for at in (0, COUNT)]
    assert all(sorted(epoch) == [*range(COUNT)] for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_tests_are_not_shuffled(folder: Path) -> None:
    assert taken(make(every(folder), "TEST", shuffle=4))[:COUNT] == [*range(COUNT)]


def test_every_rank_has_its_part(folder: Path) -> None:
    whole, net = (make(every(folder), shuffle=4) for _ in range(2))
    for layer in net.layers:
        getattr(layer, "split", lambda *_: None)(1, 2)
    expected = np.reshape(taken(whole), (-1, BATCH))[1::2]
    assert taken(net, batches=7) == expected.ravel().tolist()


@pytest.mark.parametrize(("cache", "shuffle"), [("none", 4), ("host", 0), ("device", 4)])
def test_a_record_that_is_left_out_of_one_is_left_out_of_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cache: str, shuffle: int
) -> None:
    folder = write(tmp_path / "bad", {"jpegs": 5, "list": 0})
    with caplog.at_level(logging.INFO, "osucaffe"):
        readers = 5 if cache == "none" else 2  # from 5 on, processes
        net = make(every(folder), shuffle=shuffle, cache=cache, readers=readers, skip_bad=True)
    found = taken(net)
    good = [n for n in range(COUNT) if n not in (0, 5)]
    assert sorted(found[: len(good)]) == good
    assert (found[: len(good)] == good) is not bool(shuffle)
    assert {layer.records for layer in net.layers if layer.records} == {len(good)}
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 2
    assert 'record "00000005"' in told[1 - ("0.jpg" in told[1])] + told[0]


def test_what_becomes_bad_afterwards_ends_the_run(folder: Path) -> None:
    net = make(images(folder) + hdf5(folder), skip_bad=True)
    for number in range(COUNT):
        (folder / f"{number}.jpg").unlink()
    with pytest.raises(UserError, match=r"\.jpg: No such file"):
        taken(net, ("list", "value"))


def test_nothing_is_left_where_none_is_good_in_all(tmp_path: Path) -> None:
    folder = write(tmp_path / "two", {"jpegs": 0}, count=2)
    (folder / "1.jpg").write_bytes(b"no")
    with pytest.raises(UserError, match="have no record that is good in all of them"):
        make(data(folder / "jpegs") + images(folder), skip_bad=True)


PYTHON = """layer { name: "python" type: "Python" top: "p"
    python_param { module: "tests.layers.reading.test_alignment" layer: "Numbers" } } """
MEMORY = """layer { name: "memory" type: "MemoryData" top: "m" top: "n"
    memory_data_param { batch_size: 3 channels: 1 height: 1 width: 1 } } """


class Numbers(PythonLayer):
    """Brings data."""

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(BATCH)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (lambda f: data(write(f / "more", count=14) / "raw"), "it has 14 records, and {} has 13"),
        (lambda f: data(f / "raw", batch=4), "its batch_size is 4, and that of {} is 3"),
        (lambda f: data(f / "raw", "shuffle: true"), "blocks of 1 records, and that of {} of 4"),
        (lambda f: data(f / "raw", "rand_skip: 9"), "rand_skip makes it begin at record"),
        (lambda f: hdf5(f, "shuffle: true"), 'layer "hdf5" (HDF5Data) brings records in its own'),
        (lambda f: MEMORY, 'layer "memory" (MemoryData) brings records in its own order'),
        (lambda f: PYTHON, 'layer "python" (Python) brings records in its own order'),
    ],
)
def test_what_cannot_follow_is_refused(folder: Path, other: Any, why: str) -> None:
    text = images(folder) + other(folder)
    for config in {"shuffle": 4}, {"shuffle": 4, "skip_bad": True}:
        with pytest.raises(UserError) as caught:
            make(text, **config)
        told = str(caught.value)
        assert why.format('layer "list" (ImageData)') in told
        assert "With --shuffle" in told
    make(text)  # as Caffe does


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ("", "", False),
        ("shuffle: true", "", True),
        ("", "rand_skip: 9", True),
        ("shuffle: true", "shuffle: true", False),
        ("rand_skip: 9", "rand_skip: 9", False),
    ],
)
def test_unlike_orders_are_told(
    folder: Path, caplog: pytest.LogCaptureFixture, one: str, other: str, told: bool
) -> None:
    make(images(folder, one) + data(folder / "raw", other) + MEMORY, "TEST")
    pair = 'layer "list" (ImageData) and layer "raw" (Data) bring their records in unlike orders'
    assert (pair in caplog.text) is told
    assert bool(caplog.text) is told


def test_a_shuffled_list_of_files_is_unlike_all(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(hdf5(folder, "shuffle: true") + images(folder, "shuffle: true"))
    assert "bring their records in unlike orders" in caplog.text


def test_skipping_alone_is_refused_too(folder: Path) -> None:
    text = images(folder) + data(folder / "raw", batch=4)
    with pytest.raises(UserError, match="leave out --on_bad_record skip"):
        make(text, "TEST", skip_bad=True)
    make(text, "TEST", shuffle=4)  # which is for training


def test_a_shuffle_of_a_layers_own_goes_with_single_records(folder: Path) -> None:
    text = images(folder, "shuffle: true") + data(folder / "raw")
    found = taken(make(text, shuffle=1), ("list", "raw"))
    assert found[:COUNT] != [*range(COUNT)]


@pytest.mark.parametrize(
    ("text", "shuffle", "told"),
    [
        (hdf5, COUNT, "its 13 records are one block of 13; give a smaller number"),
        (every, 256, 'layer "raw" (Data): --shuffle changes nothing: its 13 records are one block'),
        (lambda _: MEMORY, 4, "brings records in its own order"),
        (every, COUNT - 1, ""),
        (lambda folder: images(folder, "shuffle: true"), 256, ""),
    ],
)
def test_a_block_that_shuffles_nothing_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture, text: Any, shuffle: int, told: str
) -> None:
    make(text(folder), shuffle=shuffle)
    assert told in caplog.text
    assert bool(caplog.text) is bool(told)


def test_rows_that_do_not_fit_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["osucaffe.layers.reading.data"], "available_memory", lambda: 99)
    with pytest.raises(UserError, match=r"52 bytes are too many: set hdf5_data_param\.shuffle"):
        make(hdf5(folder), shuffle=4)
    make(hdf5(folder, "shuffle: true"), shuffle=4)
    make(hdf5(folder))
