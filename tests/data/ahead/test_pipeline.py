"""Prefetching: order, ring of buffers, position, errors in threads, shutdown; bad records, stalls,
and decoded records that stay."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from osucaffe.data.ahead.decoded_cache import DecodedCache
from osucaffe.data.ahead.parallel_map import BadRecords
from osucaffe.data.ahead.pipeline import Pipeline, allocate
from osucaffe.data.ahead.stalls import StallMonitor
from osucaffe.errors import UserError

SHAPES = [(4, 3), (4,)]


def count_up(position, arrays):
    """Batches that tell which records they hold."""
    data, labels = arrays
    labels[:] = np.arange(position, position + len(labels))
    data[:] = labels[:, None]


def labels_of(pipeline, count):
    return [int(pipeline.next()[1].array[0]) for _ in range(count)]


@pytest.mark.parametrize(("depth", "threads"), [(0, 1), (1, 1), (4, 1), (3, 3), (2, 8)])
def test_batches_come_in_order_whatever_the_depth(depth, threads):
    def slow_sometimes(position, arrays):
        time.sleep(0.003 * (position % 3 == 0))
        count_up(position, arrays)

    pipeline = Pipeline(slow_sometimes, SHAPES, depth=depth, threads=threads)
    assert labels_of(pipeline, 20) == list(range(0, 80, 4))
    assert pipeline.position == 80
    pipeline.close()


def test_more_threads_than_batches_share_them():
    at_once = threading.Barrier(6)  # breaks where fewer than six are at work

    def fill(position, arrays):
        if position < 12:
            at_once.wait(timeout=300)
        count_up(position, arrays)

    pipeline = Pipeline(fill, SHAPES, depth=3, threads=6)
    for step in range(10):
        data, labels = pipeline.next()
        assert labels.array.tolist() == list(range(4 * step, 4 * step + 4))
        assert (data.array == labels.array[:, None]).all()
    pipeline.close()


def test_a_batch_stays_until_the_next_is_taken_in_few_buffers():
    pipeline = Pipeline(count_up, SHAPES, depth=3, threads=2)
    addresses = set()
    for step in range(30):
        data, labels = pipeline.next()
        addresses.add(data.address)
        time.sleep(0.001)  # time for the threads to spoil it
        assert labels.array.tolist() == list(range(4 * step, 4 * step + 4))
        assert (data.array == labels.array[:, None]).all()
    assert len(addresses) == 4
    pipeline.close()


def test_position_counts_what_was_taken_and_can_be_set():
    pipeline = Pipeline(count_up, SHAPES, depth=4, threads=2)
    assert pipeline.position == 0
    labels_of(pipeline, 3)
    assert pipeline.position == 12  # not what was made ahead
    other = Pipeline(count_up, SHAPES, depth=1)
    other.position = 12
    assert labels_of(other, 4) == labels_of(pipeline, 4) == [12, 16, 20, 24]
    pipeline.position = 6
    assert labels_of(pipeline, 6) == [6, 10, 14, 18, 22, 26]
    pipeline.close()
    other.close()


def test_setting_the_position_leaves_the_batch_in_use_alone():
    pipeline = Pipeline(count_up, SHAPES, depth=3, threads=3)
    labels_of(pipeline, 5)
    _, labels = pipeline.next()
    pipeline.position = 400
    time.sleep(0.005)
    assert labels.array.tolist() == [20, 21, 22, 23]
    assert labels_of(pipeline, 5) == [400, 404, 408, 412, 416]
    pipeline.close()


@pytest.mark.parametrize(("depth", "threads"), [(0, 2), (2, 2), (2, 8)])
def test_an_error_in_a_thread_reaches_the_caller_at_its_batch(depth, threads):
    error = RuntimeError("record 9 is bad")

    def fill(position, arrays):
        if 9 in range(position, position + len(arrays[1])):
            raise error
        count_up(position, arrays)

    pipeline = Pipeline(fill, SHAPES, depth=depth, threads=threads)
    assert labels_of(pipeline, 2) == [0, 4]
    for _ in range(2):  # it does not go away by asking again
        with pytest.raises(RuntimeError) as caught:
            pipeline.next()
        assert caught.value is error
    assert pipeline.position == 8
    pipeline.position = 12
    assert labels_of(pipeline, 3) == [12, 16, 20]
    pipeline.close()


def test_close_stops_the_threads_and_dropping_it_too():
    others = set(threading.enumerate())  # such as those of solvers that nobody has closed

    def running():
        found = set(threading.enumerate()) - others
        return [thread for thread in found if thread.name.startswith("osucaffe-data")]

    pipeline = Pipeline(count_up, SHAPES, depth=3, threads=3)
    assert not running()  # none before the first batch
    labels_of(pipeline, 2)
    assert running()
    pipeline.close()
    assert not running()
    assert labels_of(pipeline, 2) == [8, 12]
    del pipeline
    for thread in running():
        thread.join(timeout=300)
    assert not running()


def test_memory_is_aligned():
    for shape in [(3,), (64, 1, 28, 28), ()]:
        buffer = allocate(shape)
        assert buffer.address % 64 == 0
        assert buffer.array.shape == shape
        assert buffer.flat.shape == (buffer.array.size,)
        assert buffer.array.ctypes.data == buffer.address


COUNT = 1000


@pytest.mark.parametrize("good", [[0], [999], [3, 500]])
def test_where_most_are_bad_each_is_tried_once(
    good: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    tried: Counter[int] = Counter()

    def read(number: int) -> str:
        tried[number] += 1
        if number not in good:
            raise UserError(f"{number} is bad")
        return f"record {number}"

    bad = BadRecords(skip=True)
    for number in [*range(COUNT), *range(COUNT)]:
        after = [each for each in good if each >= number]
        place = (after or good)[0]
        assert bad.usable(number, COUNT, read, "none") == (f"record {place}", place)
    assert {tried[number] for number in range(COUNT) if number not in good} == {1}
    assert bad.count == COUNT - len(good)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 10 + 7
    assert lines[-1].startswith("Skipped: 640 records so far")


def test_where_all_are_bad_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def read(number: int) -> str:
        raise UserError(f"{number} is bad")

    caplog.set_level(logging.CRITICAL)
    with pytest.raises(UserError, match="none is good"):
        BadRecords(skip=True).usable(7, COUNT, read, "none is good")
    with pytest.raises(UserError, match="7 is bad"):
        BadRecords().usable(7, COUNT, read, "none is good")


def log_of(caplog: pytest.LogCaptureFixture, waits: float, computes: float) -> str:
    waiting, now = StallMonitor('layer "data" (Data), TRAIN', "--readers"), 100.0
    with caplog.at_level(logging.INFO, "osucaffe"):
        waiting.note(now, now + 60)  # the first batch does not count
        now += 60
        for _ in range(2000):
            now += computes
            waiting.note(now, now + waits)
            now += waits
    return caplog.text


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    text = log_of(caplog, waits=0.03, computes=0.01)
    said = 'layer "data" (Data), TRAIN: the net waits for its records 75 % of the time'
    assert text.count(said) == 1
    assert "--readers" in text


def test_nothing_is_said_where_it_is_little(caplog: pytest.LogCaptureFixture) -> None:
    assert log_of(caplog, waits=0.001, computes=0.04) == ""


ROOT = Path(__file__).parents[3]


def test_processes_share_them() -> None:
    kept = DecodedCache(3, (2, 4, 5), interleaved=True)
    image = np.arange(40, dtype=np.uint8).reshape(2, 4, 5)
    kept.put(1, image, 7)
    child = """
import pickle, sys
kept = pickle.load(sys.stdin.buffer)
assert kept.has.tolist() == [False, True, False], kept.has
kept.put(2, kept.images[1] + 1, int(kept.labels[1]) + 1)
"""
    content = pickle.dumps(kept)
    assert len(content) < 1000  # what they hold is not sent
    subprocess.run([sys.executable, "-c", child], input=content, check=True, cwd=ROOT)
    assert kept.has.tolist() == [False, True, True]
    assert kept.labels[2] == 8
    assert np.array_equal(kept.images[2], image + 1)


def test_others_are_not_kept() -> None:
    kept = DecodedCache(2, (1, 2, 2), interleaved=False)
    kept.put(0, np.zeros((1, 3, 2), np.uint8), 1)
    kept.put(1, np.zeros((1, 2, 2), np.float32), 1)
    assert not kept.has.any()
