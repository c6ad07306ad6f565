"""The stream of records: each once in an epoch, whatever the ranks; plain records; bad ones."""

import subprocess
import sys

import numpy as np
import pytest

from osucaffe.data.ahead.parallel_map import BadRecords
from osucaffe.data.databases.database import open_database
from osucaffe.data.databases.datum import make_datum
from osucaffe.data.streams.order import consecutive
from osucaffe.data.streams.source import DatumSource
from osucaffe.errors import UserError
from osucaffe.proto import caffe_pb2
from tests.data.records import FORMATS, transform, write_records


def source(path, phase="TRAIN", *, seed=1, rand_skip=0, **settings):
    made = transform(phase, **settings)
    return DatumSource(open_database(path), made, seed=seed, rand_skip=rand_skip)


def take(made, position, count):
    data, labels = np.full((count, *made.shape), np.nan, np.float32), np.empty(count, np.float32)
    made.fill(position, [data, labels])
    return data, labels


@pytest.fixture
def database(tmp_path):
    def make(values):
        return write_records(tmp_path / f"{len(list(tmp_path.iterdir()))}_lmdb", values)

    return make


def test_a_record_of_another_size_names_its_key_and_both_shapes(database):
    images = [np.zeros((3, 8, 8), np.uint8)] * 3 + [np.zeros((3, 9, 7), np.uint8)]
    path = database(make_datum(image, 0) for image in images)
    with pytest.raises(UserError) as caught:
        take(source(path), 0, 4)
    for part in ('"00000003"', str(path), "3x9x7", "3x8x8"):
        assert part in str(caught.value)
    data, _ = take(source(path, "TEST", crop_size=6), 0, 4)  # each holds the crop: fine
    assert data.shape == (4, 3, 6, 6)
    with pytest.raises(UserError, match="3x9x7"):
        take(source(path, crop_size=8), 0, 4)


def test_an_image_smaller_than_the_crop_is_named(database):
    path = database([make_datum(np.zeros((3, 8, 6), np.uint8), 0)])
    with pytest.raises(UserError, match=r"crop_size: 7 is larger .*3x8x6") as caught:
        source(path, crop_size=7)
    assert f'(the first: record "00000000" of {path})' in str(caught.value)


def test_damaged_records_are_named(database):
    good = make_datum(np.zeros((1, 4, 4), np.uint8), 3)
    path = database([good, b"nonsense"])
    with pytest.raises(UserError, match=r'record "00000001" of .*_lmdb cannot be read: .*Datum'):
        take(source(path), 0, 2)
    [(_, value)] = open_database(FORMATS / "jpeg6_lmdb").read(0, 1)
    whole = caffe_pb2.Datum.FromString(bytes(value))
    cut = caffe_pb2.Datum(data=whole.data[:-2000], encoded=True)
    path = database([whole.SerializeToString(), cut.SerializeToString()])
    with pytest.raises(UserError, match=r'record "00000001" of .* cannot be read'):
        take(source(path), 0, 2)


def test_skipped_records_are_counted_and_the_next_good_one_takes_their_place(database):
    images = [make_datum(np.full((1, 4, 4), i, np.uint8), i) for i in range(6)]
    images[0] = images[2] = images[3] = b"nonsense"
    images[5] = make_datum(np.zeros((1, 4, 5), np.uint8), 5)
    bad = BadRecords(skip=True)
    made = DatumSource(open_database(database(images)), transform(), bad=bad)
    data, labels = take(made, 0, 12)
    assert labels.tolist() == [1, 1, 4, 4, 4, 1] * 2
    assert (data == labels[:, None, None, None]).all()
    assert bad.count == 4


def test_a_database_that_is_written_meanwhile(database, tmp_path):
    """By another process, as LMDB wants it; before it commits there is nothing to see."""
    values = [make_datum(np.full((1, 2, 2), i, np.uint8), i) for i in range(4)]
    path = database(values)
    made = source(path)
    take(made, 0, 4)
    text = f"""
import lmdb, sys
with lmdb.open({str(path)!r}, map_size=1 << 20) as environment:
    with environment.begin(write=True) as transaction:
        transaction.put(b"zzz", b"more")
        print("begun", flush=True)
        sys.stdin.readline()
"""
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as writer:
        assert writer.stdout.readline() == "begun\n"
        take(made, 4, 4)
        writer.communicate("end\n")
    with pytest.raises(UserError, match=r"_lmdb is being written: it has changed since"):
        take(made, 8, 4)


def test_runs_of_numbers_that_follow_one_another():
    numbers, places = np.array([3, 4, 5, 9, 10, 0]), np.array([0, 2, 4, 6, 7, 9])
    runs = [(each.start, each.stop) for each in consecutive(numbers)]
    assert runs == [(0, 3), (3, 5), (5, 6)]
    runs = [(each.start, each.stop) for each in consecutive(numbers, places, step=2)]
    assert runs == [(0, 3), (3, 4), (4, 5), (5, 6)]
    assert not list(consecutive(numbers[:0]))
