"""Tests of the options of `osucaffe train` that say how data are read."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from osucaffe.data.databases.database import open_database, record_key, write_database
from osucaffe.data.sets.convert import encode_image
from osucaffe.proto import caffe_pb2

from ..conftest import Cli


def test_bad_records_stop_training_or_are_skipped(cli: Cli, fixtures) -> None:
    source = open_database(fixtures / "formats" / "mnist200_lmdb")
    found = source.read(0, 40)
    values = [bytes(value) for _, value in found]
    values[20] = b"nonsense"
    write_database(cli.folder / "bad_lmdb", [(record_key(i), v) for i, v in enumerate(values)])
    cli.write_net(source="bad_lmdb")
    solver = cli.write_solver("test_iter: 1\ntest_interval: 100\ntest_initialization: false\n")
    done = cli.fails("train", "--solver", solver)
    assert 'record "00000020" of bad_lmdb cannot be read' in done.err
    done = cli.ok("train", "--solver", solver, "--on-bad-record=skip", "--readers=3")
    assert 'Skipped: record "00000020" of bad_lmdb cannot be read' in done.err


@pytest.mark.skipif(sys.platform != "linux", reason="reader processes are Linux's")
def test_reader_processes_train_alike_and_name_bad_records(cli: Cli) -> None:
    images = np.random.default_rng(1).integers(0, 256, (40, 28, 28, 1), np.uint8)
    jpegs = [encode_image(image, "jpg") for image in images]

    def write(name: str) -> None:
        records = []
        for at, jpeg in enumerate(jpegs):
            datum = caffe_pb2.Datum(data=jpeg, label=at % 10, encoded=True)
            records.append((record_key(at), datum.SerializeToString()))
        write_database(cli.folder / name, records)
        cli.write_net(source=name)

    write("jpeg_lmdb")
    solver = cli.write_solver("test_iter: 1\ntest_interval: 100\ntest_initialization: false\n")
    losses = []
    for readers in ("1", "6"):
        done = cli.ok("train", "--solver", solver, "--readers", readers)
        lines = done.err.splitlines()
        losses.append([line.split("loss = ")[1] for line in lines if ", loss = " in line])
    assert losses[0] == losses[1]
    jpegs[20] = b"\xff\xd8\xff nothing"
    write("bad_lmdb")
    done = cli.fails("train", "--solver", solver, "--readers=6")
    assert 'record "00000020" of bad_lmdb cannot be read' in done.err


def test_only_a_gpu_decodes_on_a_gpu(cli: Cli) -> None:
    cli.write_net()
    solver = cli.write_solver("test_iter: 1\ntest_interval: 100\n")
    done = cli.fails("train", "--solver", solver, "--decode", "gpu")
    assert "--decode gpu is for GPUs only: add --gpu 0" in done.err
    cli.ok("train", "--solver", solver, "--decode=host")


def test_shuffled_training_repeats_itself(cli: Cli) -> None:
    cli.write_net()
    solver = cli.write_solver("test_iter: 1\ntest_interval: 100\n")

    def losses(*options: str) -> list[str]:
        done = cli.ok("train", "--solver", solver, *options)
        return [line.split("loss = ")[1] for line in done.err.splitlines() if ", loss = " in line]

    shuffled = losses("--shuffle", "16")
    assert shuffled == losses("--shuffle=16", "--readers", "2")
    assert shuffled != losses()
