"""Tests of reading many raw records at once: the same as one by one, and what is not plain."""

import numpy as np
import pytest

from osucaffe.data.databases.database import open_database
from osucaffe.data.databases.datum import make_datum, parse_datum
from osucaffe.data.databases.raw_records import BulkReader, PlainForm
from osucaffe.data.streams.source import DatumSource
from osucaffe.errors import UserError
from osucaffe.proto import caffe_pb2
from tests.data.records import transform, write_records

LABELS = (0, 1, 127, 128, 999, 16383, 16384, 2**21 - 1)
SHAPE = (3, 90, 70)


def image(number, shape=SHAPE):
    return np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)


def unlabelled(values):
    channels, height, width = values.shape
    datum = caffe_pb2.Datum(channels=channels, height=height, width=width, data=values.tobytes())
    return datum.SerializeToString()


@pytest.fixture
def database(tmp_path):
    def make(values, batch=1000):
        return open_database(write_records(tmp_path / "lmdb", values, batch=batch))

    return make


def raw_source(database, **settings):
    return DatumSource(database, transform(**settings), seed=3, raw=True)


def take(source, position, count):
    data = np.full((count, *source.raw_shape), 99, np.uint8)
    table, labels = np.full((count, 3), -1, np.int32), np.full(count, -1, np.float32)
    source.fill(position, [data, table, labels])
    return data, table, labels


@pytest.mark.parametrize("encoded", [None, False])
@pytest.mark.parametrize("batch", [3, 1000])  # a transaction: where the pages of keys lie
def test_bulk_reads_are_what_single_reads_are(database, encoded, batch):
    count = 300  # more than one call of the system takes
    labels = [LABELS[i % len(LABELS)] for i in range(count)]
    made = database(
        [make_datum(image(i), label, encoded=encoded) for i, label in enumerate(labels)], batch
    )
    source = raw_source(made, crop_size=50, mirror=True)
    assert source._bulk
    for start, number in [(0, count), (7, 1), (299, 302), (40, 259)]:
        data, _, found = take(source, start, number)
        records = (start + np.arange(number)) % count
        assert all((data[i] == image(record)).all() for i, record in enumerate(records))
        assert found.tolist() == [labels[record] for record in records]
    bulk = take(source, 250, 200)
    source._bulk = None
    for one, other in zip(bulk, take(source, 250, 200), strict=True):
        assert (one == other).all()
    assert len({tuple(row) for row in bulk[1].tolist()}) > 100


@pytest.mark.parametrize(
    "odd",
    [
        make_datum(image(9), 2**21),  # a label of more bytes
        make_datum(image(9), -1),
        unlabelled(image(9)),
        make_datum(image(9), 3, encoded=False),
    ],
)
def test_odd_records_are_read_one_by_one(database, odd):
    values = [make_datum(image(i), i) for i in range(5)]
    values[3] = odd
    source = raw_source(database(values))
    assert source._bulk.read(0, 5, np.empty((5, *SHAPE), np.uint8)) is None
    assert source._bulk.read(0, 3, np.empty((3, *SHAPE), np.uint8)).tolist() == [0, 1, 2]
    data, _, labels = take(source, 0, 5)
    assert labels.tolist() == [0, 1, 2, parse_datum(memoryview(odd)).label, 4]
    assert (data[3] == image(9)).all()


def test_another_shape_of_as_many_pixels_is_noticed(database):
    values = [make_datum(image(i), 1) for i in range(3)]
    values[2] = make_datum(image(2, (3, 70, 90)), 1)
    with pytest.raises(UserError, match=r'record "00000002" of .*lmdb is 3x70x90'):
        take(raw_source(database(values)), 0, 3)


def test_a_file_that_is_cut_short_meanwhile_is_an_error_and_no_crash(database):
    made = database([make_datum(image(i), 1) for i in range(40)])
    source = raw_source(made)
    take(source, 0, 40)
    file = made.path / "data.mdb"
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size // 2)
    take(source, 0, 10)
    with pytest.raises(UserError, match=r"data\.mdb has become shorter"):
        take(source, 0, 40)


def test_short_reads_go_on(database, monkeypatch):
    made = database([make_datum(image(i), i) for i in range(20)])
    source = raw_source(made)
    preadv = __import__("os").preadv
    calls = []

    def short(descriptor, parts, offset):
        calls.append(len(parts))
        return preadv(descriptor, parts[:7], offset)  # as after a signal

    monkeypatch.setattr("os.preadv", short)
    data, _, labels = take(source, 0, 20)
    assert labels.tolist() == list(range(20))
    assert all((data[i] == image(i)).all() for i in range(20))
    assert len(calls) > 5


def test_small_records_find_their_labels_too():
    labels = [200, 300, 16000]
    values = [memoryview(make_datum(image(i, (1, 4, 5)), n)) for i, n in enumerate(labels)]
    form = PlainForm.of(values[0], parse_datum(values[0]))
    images, found = form.small(np.array([np.frombuffer(value, np.uint8) for value in values]))
    assert found.tolist() == labels
    assert all((images[i] == image(i, (1, 4, 5))).all() for i in range(3))
    other = np.frombuffer(make_datum(image(3, (1, 4, 5)), 5), np.uint8)
    assert form.small(other[None]) is not None
    assert form.small(np.pad(other, (1, 0))[None]) is None


def test_encoded_records_have_no_form(database):
    value = memoryview(caffe_pb2.Datum(data=b"x" * 99, encoded=True).SerializeToString())
    assert PlainForm.of(value, parse_datum(value)) is None
    small = database([make_datum(image(i, (1, 4, 5)), 3) for i in range(9)])
    assert raw_source(small)._bulk is None
    assert BulkReader(small, raw_source(small)._form).read(
        0, 1, np.empty((1, 20), np.uint8)
    ).tolist() == [3]
