"""`osucaffe data cifar10` and `data fashion_mnist`: of the sets' files, what the models want."""

from __future__ import annotations

import gzip

import numpy as np

from osucaffe.data.databases.database import open_database
from osucaffe.data.databases.datum import parse_datum, pixels
from osucaffe.proto import read_mean, read_net

from ..conftest import ROOT, Cli


def read(cli: Cli, path: str) -> tuple[list[int], np.ndarray]:
    database = open_database(cli.folder / path)
    found = [parse_datum(value) for _, value in database.read(0, len(database))]
    return [each.label for each in found], np.array([pixels(each) for each in found])


def test_cifar10(cli: Cli) -> None:
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        rows = rng.integers(0, 256, (4, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        (cli.folder / f"{name}.bin").write_bytes(rows.tobytes())
    cli.ok("data", "cifar10", "--files=.")
    for layer in read_net(ROOT / "models" / "cifar10_quick" / "train_val.prototxt").layer[:2]:
        assert open_database(cli.folder / layer.data_param.source)
        mean = read_mean(cli.folder / layer.transform_param.mean_file)
    _, images = read(cli, "data/cifar10/cifar10_train_lmdb")
    np.testing.assert_allclose(mean, images.mean(0), rtol=1e-6)
    labels = (cli.folder / "data" / "cifar10" / "labels.txt").read_text().splitlines()
    assert (labels[0], labels[9]) == ("airplane", "truck")
    assert "--files" in cli("data", "cifar10").err


def test_fashion_mnist(cli: Cli) -> None:
    rng = np.random.default_rng(0)
    images = {}
    for part, count in (("train", 6), ("t10k", 4)):
        images[part] = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        header = np.array([0x803, count, 28, 28], ">u4").tobytes()
        content = gzip.compress(header + images[part].tobytes())
        (cli.folder / f"{part}-images-idx3-ubyte.gz").write_bytes(content)
        header = np.array([0x801, count], ">u4").tobytes()
        (cli.folder / f"{part}-labels-idx1-ubyte").write_bytes(header + bytes(range(count)))
    done = cli.ok("data", "fashion_mnist", "--files=.", "--out=out")
    assert "out/fashion_mnist_train_lmdb: 6 images" in done.out
    for part, name in (("train", "train"), ("t10k", "test")):
        labels, found = read(cli, f"out/fashion_mnist_{name}_lmdb")
        assert labels == list(range(len(labels)))
        np.testing.assert_array_equal(found[:, 0], images[part])
    assert (cli.folder / "out" / "labels.txt").read_text().endswith("\nAnkle boot\n")
