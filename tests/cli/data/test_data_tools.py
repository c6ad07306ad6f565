"""The commands that make databases and describe them; CIFAR-10 and Fashion-MNIST."""

from __future__ import annotations

import gzip
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from osucaffe.data.databases.database import open_database, record_key, write_database
from osucaffe.data.databases.datum import make_datum, parse_datum, pixels
from osucaffe.data.pictures.image import resize
from osucaffe.proto import Datum, read_mean, read_net
from tests.data.records import read_images, read_records

from ..conftest import ROOT, Cli


def records(path: Path) -> dict[str, tuple[Datum, np.ndarray]]:
    """The records by key: the message, and its pixels."""
    return {
        key.decode(): (Datum.FromString(value), pixels(parse_datum(memoryview(value))))
        for key, value in read_records(path)
    }


@pytest.fixture
def pictures(cli: Cli, fixtures: Path) -> Path:
    """The folder "in" with the six photographs that C++ Caffe's LMDB holds, and list.txt."""
    folder = cli.folder / "in"
    folder.mkdir()
    lines = []
    for key, (datum, _) in records(fixtures / "formats" / "jpeg6_lmdb").items():
        name = key.partition("_")[2]
        (folder / name).write_bytes(datum.data)
        lines.append(f"{name} {datum.label}\n")
    cli.write("list.txt", "".join(lines))
    return folder


def test_convert_imageset_writes_what_caffes_tool_wrote(
    cli: Cli, pictures: Path, fixtures: Path
) -> None:
    size = ("--resize_height=32", "--resize_width=48")
    done = cli("convert_imageset", *size, "--check_size", "in/", "list.txt", "raw_lmdb")
    assert (done.code, done.out) == (0, "raw_lmdb: 6 images\n")
    for name, options in (("raw6_lmdb", ()), ("jpeg6_lmdb", ("--encoded",))):
        if options:
            cli.ok("convert_imageset", *options, "in/", "list.txt", "raw_lmdb")
        wanted, found = records(fixtures / "formats" / name), records(cli.folder / "raw_lmdb")
        assert list(found) == list(wanted)
        assert all(found[key][0] == datum for key, (datum, _) in wanted.items())


def test_convert_imageset_encodes_shuffles_and_grays(cli: Cli, pictures: Path) -> None:
    pytest.importorskip("PIL")
    cli.ok("convert_imageset", "--encode_type", "png", "--gray", "--shuffle",
               "--seed", "3", "--readers", "3", "in/", "list.txt", "out_lmdb")  # fmt: skip
    found = records(cli.folder / "out_lmdb")
    names = [key.partition("_")[2] for key in found]
    assert names != sorted(names)
    assert sorted(names) == sorted(path.name for path in pictures.iterdir())
    assert [key[:8] for key in found] == [f"{index:08d}" for index in range(6)]
    for name, (datum, image) in zip(names, found.values(), strict=True):
        content = (pictures / name).read_bytes()
        assert datum.encoded
        assert datum.data.startswith(b"\x89PNG")
        assert (image[0] == simplejpeg.decode_jpeg(content, colorspace="GRAY")[:, :, 0]).all()


def test_convert_imageset_and_bad_images(cli: Cli, pictures: Path) -> None:
    (pictures / "2.jpg").write_bytes(b"\xff\xd8\xff no more")
    (pictures / "4.jpg").unlink()
    done = cli.fails("convert_imageset", "in/", "list.txt", "out_lmdb")
    assert "cannot read image in/2.jpg" in done.err
    assert not (cli.folder / "out_lmdb").exists()
    done = cli("convert_imageset", "--on-bad-record", "skip", "in/", "list.txt", "out_lmdb")
    assert (done.code, done.out) == (0, "out_lmdb: 4 images (2 bad ones skipped)\n")
    assert "in/2.jpg" in done.err
    assert "in/4.jpg: No such file" in done.err
    assert [key[8:] for key in records(cli.folder / "out_lmdb")] == [
        f"_{number}.jpg" for number in (0, 1, 3, 5)
    ]
    for picture in (good := [*pictures.iterdir()]):
        picture.rename(picture.with_suffix(".away"))
    done = cli("convert_imageset", "--on-bad-record", "skip", "in/", "list.txt", "out_lmdb")
    assert (done.code, done.out) == (1, "")
    assert done.err.endswith("osucaffe: out_lmdb: none of its 6 images can be used\n")
    assert len(records(cli.folder / "out_lmdb")) == 4  # as before
    for picture in good:
        picture.with_suffix(".away").rename(picture)
    small = resize(np.zeros((64, 96, 3), np.uint8), 20, 20)
    (pictures / "1.jpg").write_bytes(simplejpeg.encode_jpeg(small))
    done = cli("convert_imageset", "--check_size", "in/", "list.txt", "out_lmdb")
    assert "image in/1.jpg is 20x20, but the first one is 64x96" in done.err
    for options, message in (
        (("--resize_width", "9"), "give both --resize_height and --resize_width"),
        (("--encode_type", "gif"), 'unknown encoding "gif"'),
        (("--resize_width=-9", "--resize_height=9"), "must be at least 0, not -9"),
    ):
        assert message in cli("convert_imageset", *options, "in/", "list.txt", "out_lmdb").err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("0.jpg 3000000000", "list.txt, line 1: "),
        (f"{'d/' * 260}0.jpg 0", "cannot be a key of an LMDB: keys have 1 to 511 bytes"),
    ],
)
def test_what_no_record_can_hold(cli: Cli, pictures: Path, line: str, told: str) -> None:
    cli.write("list.txt", line)
    (cli.folder / line.split()[0]).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(pictures / "0.jpg", cli.folder / line.split()[0])
    done = cli.fails("convert_imageset", "./", "list.txt", "out_lmdb")
    assert told in done.err
    assert "report it" not in done.err


def test_a_folder_of_images_without_its_slash(cli: Cli, pictures: Path) -> None:
    done = cli.fails("convert_imageset", "--on_bad_record=skip", "in", "list.txt", "out_lmdb")
    assert done.err.startswith("osucaffe: in0.jpg does not exist: in is put before each name")
    assert "end it with a slash (in/)" in done.err
    assert not (cli.folder / "out_lmdb").exists()


def test_compute_image_mean_writes_what_caffes_tool_wrote(cli: Cli, fixtures: Path) -> None:
    formats = fixtures / "formats"
    done = cli.ok("compute_image_mean", str(formats / "mnist200_lmdb"), "mean.binaryproto")
    wanted = read_mean(formats / "mnist200_mean.binaryproto")
    found = read_mean(cli.folder / "mean.binaryproto")
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < 1e-4
    assert "200 images of 1 x 28 x 28" in done.out
    assert f"mean_value channel [0]: {wanted.mean(dtype=np.float64):.6g}" in done.out
    done = cli("compute_image_mean", str(formats / "jpeg6_lmdb"), "--readers", "2")
    assert done.out.count("mean_value") == 3


def test_a_mean_whose_first_record_is_bad(cli: Cli) -> None:
    values = [b"no record", *(make_datum(np.full((1, 2, 2), n, np.uint8), 0) for n in (1, 3))]
    write_database(cli.folder / "x_lmdb", [(record_key(i), v) for i, v in enumerate(values)])
    cli.fails("compute_image_mean", "x_lmdb")
    done = cli("compute_image_mean", "--on_bad_record=skip", "x_lmdb")
    assert done.out.splitlines()[::2] == ["2 images of 1 x 2 x 2", "1 bad records skipped"]
    assert "mean_value channel [0]: 2\n" in done.out


def test_a_mean_of_images_of_several_sizes(cli: Cli) -> None:
    images = [np.zeros((1, height, 3), np.uint8) for height in (4, 5)]
    write_database(
        cli.folder / "x_lmdb",
        [(record_key(index), make_datum(image, 0)) for index, image in enumerate(images)],
    )
    done = cli.fails("compute_image_mean", "x_lmdb")
    assert 'record "00000001" of x_lmdb is 1x5x3, but the first one is 1x4x3' in done.err


def test_convert_mnist(cli: Cli) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    header = np.array([0x803, 5, 28, 28], ">u4").tobytes()
    (cli.folder / "images").write_bytes(header + images.tobytes())
    labels = np.array([0x801, 5], ">u4").tobytes() + bytes(range(5))
    (cli.folder / "labels").write_bytes(labels)
    done = cli("convert_mnist", "images", "labels", "out_lmdb")
    assert (done.code, done.out) == (0, "out_lmdb: 5 digits\n")
    found = list(records(cli.folder / "out_lmdb").values())
    assert [datum.label for datum, _ in found] == list(range(5))
    assert (np.array([image[0] for _, image in found]) == images).all()
    assert "is not a whole MNIST file" in cli("convert_mnist", "images", "images", "x").err


@pytest.mark.parametrize("form", ["binary", "python"])
def test_convert_cifar(cli: Cli, form: str) -> None:
    generator = np.random.default_rng(0)
    wanted = []
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        data = generator.integers(0, 256, (4, 3072), dtype=np.uint8)
        labels = generator.integers(0, 10, 4).tolist()
        wanted += zip(labels, data.reshape(4, 3, 32, 32), strict=True)
        if form == "binary":
            rows = np.concatenate([np.array(labels, np.uint8)[:, None], data], axis=1)
            (cli.folder / f"{name}.bin").write_bytes(rows.tobytes())
        else:
            content = pickle.dumps({b"data": data, b"labels": labels}, protocol=2)
            (cli.folder / name).write_bytes(content)
    done = cli.ok("convert_cifar", ".", "out", "lmdb")
    assert "out/cifar10_train_lmdb: 20 images" in done.out
    parts = [records(cli.folder / "out" / f"cifar10_{part}_lmdb") for part in ("train", "test")]
    assert list(parts[0])[:2] == ["00000", "00001"]
    found = [*parts[0].values(), *parts[1].values()]
    for (datum, image), (label, values) in zip(found, wanted, strict=True):
        assert datum.label == label
        assert (image == values).all()


def test_bad_cifar_files(cli: Cli) -> None:
    assert "neither test_batch.bin nor test_batch" in cli("convert_cifar", ".", "out").err
    (cli.folder / "test_batch").write_bytes(pickle.dumps({b"data": Path("x")}))
    done = cli("convert_cifar", ".", "out")
    assert "test_batch is not a file of CIFAR-10: it asks for pathlib" in done.err
    (cli.folder / "test_batch.bin").write_bytes(bytes(3000))
    assert "3000 bytes are not records of 3073" in cli("convert_cifar", ".", "out").err


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
    _, images, _ = read_images(cli.folder / "data" / "cifar10" / "cifar10_train_lmdb")
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
        _, found, labels = read_images(cli.folder / "out" / f"fashion_mnist_{name}_lmdb")
        assert labels.tolist() == list(range(len(labels)))
        np.testing.assert_array_equal(found[:, 0], images[part])
    assert (cli.folder / "out" / "labels.txt").read_text().endswith("\nAnkle boot\n")
