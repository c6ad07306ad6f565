"""`osucaffe extract_features`: the databases hold what the net computes; bad names."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.cli.score import extract_features
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import Datum, read_net, read_weights, write_weights
from tests.data.records import read_records

from ..conftest import DEPLOY


def prepare(cli):
    """The tiny net and weights for it; returns what it computes for 16 digits."""
    path = cli.folder / cli.write_net()
    net = Net(read_net(path), phase="TEST", backend=Cpu(threads=1), seed=3, inspectable=True)
    write_weights(cli.folder / "tiny.caffemodel", net.to_proto())
    net.load(read_weights(cli.folder / "tiny.caffemodel"))
    scores, data = [], []
    for _ in range(2):
        net.forward()
        scores.append(net.read("ip"))
        data.append(net.read("data"))
    return np.concatenate(scores), np.concatenate(data)


def datums(path):
    return [(key, Datum.FromString(value)) for key, value in read_records(path)]


def test_records(cli):
    scores, data = prepare(cli)
    done = cli.ok("extract_features", "tiny.caffemodel", "net.prototxt", "ip,data", "a,b", "2")
    assert done.out == "wrote a: 16 x ip\nwrote b: 16 x data\n"
    found = datums(cli.folder / "a")
    assert [key for key, _ in found] == [b"%010d" % index for index in range(16)]
    for (_, datum), expected in zip(found, scores, strict=True):
        assert (datum.channels, datum.height, datum.width) == (10, 1, 1)
        np.testing.assert_allclose(datum.float_data, expected, rtol=1e-5, atol=1e-6)
    for (_, datum), expected in zip(datums(cli.folder / "b"), data, strict=True):
        assert (datum.channels, datum.height, datum.width) == expected.shape
        np.testing.assert_allclose(datum.float_data, expected.ravel(), rtol=1e-6)


def test_the_arguments_of_caffes_tool(cli):
    prepare(cli)
    command = "extract_features", "tiny.caffemodel", "net.prototxt", "ip", "a", "1", "lmdb"
    for ending in (), ("CPU",):
        cli.ok(*command, *ending)
    assert len(read_records(cli.folder / "a")) == 8
    assert "--gpu x: give" in cli.fails(*command, "GPU", "DEVICE_ID=x").err


@pytest.mark.parametrize("when", ["first record", "commit"])
def test_a_disk_that_is_full_ends_the_run(monkeypatch, when):
    def write(path, records):
        records = iter(records)
        if when == "first record":
            next(records)
        else:
            list(records)
        raise UserError(f"cannot write LMDB {path}: no space")

    monkeypatch.setattr(extract_features, "write_database", write)
    failed = []

    def run():
        writer = extract_features._Writer("features")
        try:
            for _ in range(9):
                writer.put(np.zeros((2, 3)))
            writer.finish()
        except UserError as error:
            failed.append(str(error))
        finally:
            writer.abandon()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert failed == ["cannot write LMDB features: no space"]
    assert not thread.is_alive()


def test_bad_input(cli):
    prepare(cli)
    cli.write("taken", "a file")
    for blobs, databases, message in [
        ("ip", "a,b", "1 blobs and 2 databases"),
        ("fc7", "a", 'has no blob "fc7": it has data, label, ip'),
        ("loss", "a", "not something for each item"),
        ("ip,data", "taken,b", "taken exists and is not an LMDB"),
    ]:
        done = cli.fails(
            "extract_features", "tiny.caffemodel", "net.prototxt", blobs, databases, "2"
        )
        assert message in done.err
    assert not (cli.folder / "a").exists()
    cli.write("deploy.prototxt", DEPLOY)
    done = cli("extract_features", "tiny.caffemodel", "deploy.prototxt", "ip", "a", "2")
    assert 'deploy.prototxt: nothing fills its input "data"' in done.err
    done = cli("test", "--model", "deploy.prototxt", "--weights", "tiny.caffemodel")
    assert 'deploy.prototxt: nothing fills its input "data"' in done.err
