"""Tests of reader processes: the same batches as from threads, the same messages, no one left."""

import errno
import fcntl
import logging
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.data.ahead import processes
from osucaffe.data.ahead.decoded_cache import DecodedCache
from osucaffe.data.ahead.parallel_map import BadRecords
from osucaffe.data.ahead.pipeline import Pipeline, Threads
from osucaffe.data.ahead.processes import Processes
from osucaffe.data.config import DataConfig
from osucaffe.data.databases.database import open_database
from osucaffe.data.databases.datum import make_datum
from osucaffe.data.sets.convert import encode_image
from osucaffe.data.streams.image_list import ImageListSource
from osucaffe.data.streams.source import DatumSource
from osucaffe.errors import UserError
from osucaffe.layer import create_layer
from osucaffe.layers.base import Context
from osucaffe.layers.reading import data
from osucaffe.proto import caffe_pb2
from tests.data.records import transform, write_records

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reader processes are Linux's")

COUNT, SIDE, CROP, BATCH = 30, 12, 8, 7
FOREVER = 1 << 40


def images():
    return np.random.default_rng(3).integers(0, 256, (COUNT, SIDE, SIDE, 3), np.uint8)


def write(path, bad=()):
    """An LMDB of JPEGs, of which some are damaged."""

    def records():
        for number, image in enumerate(images()):
            jpeg = b"\xff\xd8\xff nothing" if number in bad else encode_image(image, "jpg")
            yield caffe_pb2.Datum(data=jpeg, label=number, encoded=True).SerializeToString()

    return write_records(path, records())


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "jpeg_lmdb")


def source(path, *, raw=False, skip=False):
    made = transform(crop_size=CROP, mirror=True, mean_value=[9])
    if path.suffix == ".txt":
        return ImageListSource(str(path), made, block=1, seed=5, raw=raw)
    bad = BadRecords(skip=skip)
    return DatumSource(open_database(path), made, seed=5, block=4, bad=bad, raw=raw)


def pipeline(made, workers, readers=2, depth=3):
    shapes = [(BATCH, *made.shape), (BATCH,)]
    dtypes = ["float32"] * 2
    if made.raw:
        shapes[:1] = [(BATCH, *made.raw_shape), (BATCH, 3)]
        dtypes[:1] = ["uint8", "int32"]
    return Pipeline(made.fill, shapes, dtypes=dtypes, depth=depth, threads=readers, workers=workers)


def take(pipe, count=1):
    found = deque(maxlen=1000)
    for _ in range(count):
        found.append([buffer.array.copy() for buffer in pipe.next()])
    return list(found)


def running(pipe):
    """The processes that read for a pipeline."""
    process = pipe._workers._running._process.pid
    children = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [process, *map(int, children.split())]


def await_end(processes):
    """Wait until none of these is there any more, zombies aside."""
    deadline = time.monotonic() + 60
    while any(_is_alive(each) for each in processes):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.01)


def _is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("raw", "readers"), [(True, 1), (False, 5)])
def test_batches_are_those_of_threads(folder, raw, readers):
    pipes = [pipeline(source(folder, raw=raw), each, readers) for each in (Threads, Processes)]
    for rank in (0, 1):
        for pipe in pipes:
            pipe.split(rank, 2)
        for position in (0, 400):
            for pipe in pipes:
                pipe.position = position
            expected, found = (take(pipe, 9) for pipe in pipes)
            for one, other in zip(expected, found, strict=True):
                assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
            assert len({pipe.position for pipe in pipes}) == 1
    processes = running(pipes[1])
    assert len(processes) == 1 + readers
    for pipe in pipes:
        pipe.close()
    await_end(processes)
    assert np.array_equal(*(take(pipe)[0][0] for pipe in pipes))  # they start again
    processes = running(pipes[1])
    del pipe, pipes
    await_end(processes)


def test_records_that_stay_are_decoded_once(folder):
    made = source(folder)
    made.decoded = DecodedCache(COUNT, made.record_shape, interleaved=True)
    pipes = pipeline(source(folder), Threads), pipeline(made, Processes, depth=1)
    for _ in range(3):
        one, other = (take(pipe, 5) for pipe in pipes)
        for a, b in zip(one, other, strict=True):
            assert np.array_equal(a[0], b[0])
            assert np.array_equal(a[1], b[1])
    assert made.decoded.has.all()  # the readers put them where this process has them, too
    for pipe in pipes:
        pipe.close()


def test_images_of_a_list(tmp_path):
    for number, image in enumerate(images()):
        (tmp_path / f"{number}.jpg").write_bytes(encode_image(image, "jpg"))
    path = tmp_path / "list.txt"
    path.write_text("".join(f"{tmp_path}/{number}.jpg {number}\n" for number in range(COUNT)))
    expected, found = (pipeline(source(path), each) for each in (Threads, Processes))
    for one, other in zip(take(expected, 12), take(found, 12), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    (tmp_path / "17.jpg").unlink()
    messages = []
    for pipe in (expected, found):
        with pytest.raises(UserError, match=r"image 18 of the list") as caught:
            take(pipe, 12)
        messages.append(str(caught.value))
        pipe.close()
    assert messages[0] == messages[1]


def test_a_bad_record_stops_at_its_batch(tmp_path):
    path = write(tmp_path / "bad_lmdb", bad=[2])
    expected, found = (pipeline(source(path), each, 4) for each in (Threads, Processes))
    seen = []
    for pipe in (expected, found):
        with pytest.raises(UserError, match="00000002") as caught:
            take(pipe, 9)
        with pytest.raises(UserError, match="00000002"):
            pipe.next()
        seen.append((str(caught.value), pipe.position))
        pipe.position = BATCH * 3
        pipe.close()
    assert seen[0] == seen[1]


def test_skipped_records_are_named_and_counted_here(tmp_path, caplog):
    path = write(tmp_path / "bad_lmdb", bad=range(1, COUNT, 2))
    expected, found = (source(path, skip=True) for _ in range(2))
    pipes = pipeline(expected, Threads), pipeline(found, Processes, depth=1)
    with caplog.at_level(logging.WARNING, "osucaffe"):
        one = take(pipes[0], 6)
        caplog.clear()
        other = take(pipes[1], 6)
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(one, other, strict=True))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 11
    assert all(line.startswith('Skipped: record "') for line in lines[:10])
    assert found.bad.count == expected.bad.count == COUNT // 2  # once each, whoever met it
    for pipe in pipes:
        pipe.close()


def test_a_reader_that_dies(folder):
    pipe = pipeline(source(folder), Processes)
    take(pipe, 2)
    processes = running(pipe)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        for process in processes:
            os.kill(process, number)  # as a terminal or a batch system: not meant for them
    take(pipe, 10)
    os.kill(processes[1], signal.SIGKILL)
    with pytest.raises(UserError, match=r"was ended by SIGKILL.*--readers"):
        take(pipe, FOREVER)
    with pytest.raises(UserError, match="SIGKILL"):
        pipe.next()
    pipe.position = 0
    assert len(take(pipe, 3)) == 3  # others take over where somebody goes on
    processes += running(pipe)
    os.kill(running(pipe)[0], signal.SIGKILL)
    with pytest.raises(UserError, match=r"have ended \(exit code -9\)"):
        take(pipe, FOREVER)
    pipe.close()
    await_end(processes)


def test_none_is_left_when_the_trainer_is_killed(folder):
    script = """
        import sys, time
        from pathlib import Path
        sys.path.insert(0, sys.argv[1])
        from tests.data.ahead import test_processes as tests
        pipe = tests.pipeline(tests.source(Path(sys.argv[2])), tests.Processes)
        tests.take(pipe, 3)
        print(*tests.running(pipe), flush=True)
        time.sleep(1000)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(Path(__file__).parents[3])]
    with subprocess.Popen([*command, folder], stdout=subprocess.PIPE, text=True) as trainer:
        processes = [int(each) for each in trainer.stdout.readline().split()]
        assert len(processes) == 3
        trainer.kill()
        await_end(processes)


def test_what_is_never_asked_for_a_batch_ends_at_once(folder):
    pipe = pipeline(source(folder), Processes)
    processes = running(pipe)
    assert len(processes) == 1  # which is ready to fork the readers
    del pipe
    await_end(processes)


class Broken:
    """A source with a fault."""

    def fill(self, position, arrays):
        if position >= 2 * BATCH:
            raise KeyError("a fault")


def test_a_fault_shows_where_it_is():
    pipe = Pipeline(Broken().fill, [(BATCH, 2)], depth=2, workers=Processes)
    take(pipe, 2)
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*in fill.*KeyError: 'a fault'"):
        pipe.next()
    pipe.close()


def test_a_database_that_has_gone_before_they_start(folder):
    pipe = pipeline(source(folder), Processes)
    folder.rename(folder.with_suffix(".away"))
    with pytest.raises(UserError, match=r"LMDB .*jpeg_lmdb does not exist"):
        pipe.next()
    pipe.close()


def test_no_memory_to_share(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"shared memory .*No space left.*--readers"):
        Pipeline(Broken().fill, [(BATCH, 2)], depth=2, workers=Processes)


@pytest.mark.parametrize(
    ("readers", "sharers", "kind", "expected"),
    [
        (4, 1, "encoded", Threads),
        (5, 2, "encoded", Processes),
        (None, 1, "encoded", Processes),
        (None, 4, "encoded", Threads),  # of 16 cores that four ranks share
        (64, 1, "raw", Threads),
        (None, 1, "varied", Processes),
    ],
)
def test_which_layers_read_with_processes(tmp_path, monkeypatch, readers, sharers, kind, expected):
    monkeypatch.setattr(data, "usable_cores", lambda: 16)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    path = tmp_path / "lmdb"
    if kind == "encoded":
        write(path)
    else:
        image = images()[0].transpose(2, 0, 1)
        write_records(path, [make_datum(image, 1)])
    param = caffe_pb2.LayerParameter(name="data", type="Data", top=["data", "label"])
    param.data_param.source, param.data_param.batch_size = str(path), 2
    param.transform_param.augmentation_param.rotation = 9 if kind == "varied" else 0
    layer = create_layer(param, "TRAIN")
    layer.context = Context(Cpu(), DataConfig(readers=readers, sharers=sharers))
    layer.setup([])
    assert type(layer._pipeline._workers) is expected
    layer.close()


def test_a_batch_of_tasks_is_written_whole_whatever_signals_come():
    """Of more bytes than a pipe takes at once, to readers that are slow."""
    end, tasks = os.pipe()
    fcntl.fcntl(tasks, fcntl.F_SETPIPE_SZ, select.PIPE_BUF)
    running, found = processes._Running.__new__(processes._Running), []
    running._tasks = tasks
    sent = b"".join(processes.TASK.pack(*[number] * 6) for number in range(2000))

    def read():
        while task := os.read(end, processes.TASK.size):
            found.append(task)
            time.sleep(1e-5)

    reader = threading.Thread(target=read)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    reader.start()
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
        running.send(sent)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.close(tasks)
        reader.join()
        os.close(end)
    assert b"".join(found) == sent
