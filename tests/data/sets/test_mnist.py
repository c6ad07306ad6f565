"""Tests of the MNIST sources: packaged, files, mirrors (a local one), and the databases made."""

import gzip
import hashlib
import http.server
import threading

import numpy as np
import pytest

from osucaffe.data.sets import mnist
from osucaffe.errors import UserError
from tests.data.records import read_images


def idx(array):
    header = np.array([0x800 + array.ndim, *array.shape], ">u4")
    return header.tobytes() + array.tobytes()


@pytest.fixture
def small():
    """Four small files by name, and the digits in them."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (30, 28, 28), dtype=np.uint8)
    labels = (np.arange(30) % 10).astype(np.uint8)
    parts = {"train": slice(0, 20), "t10k": slice(20, 30)}
    contents = {}
    for name, part in parts.items():
        contents[f"{name}-images-idx3-ubyte.gz"] = gzip.compress(idx(images[part]))
        contents[f"{name}-labels-idx1-ubyte.gz"] = gzip.compress(idx(labels[part]))
    return contents, images, labels


def test_the_packaged_digits(tmp_path, capsys):
    digits = mnist.make(tmp_path, source="packaged")
    assert "10,000 + 2,000 digits of the package" in capsys.readouterr().out
    for name, part, count in [("train", digits.train, 10_000), ("test", digits.test, 2_000)]:
        keys, images, labels = read_images(tmp_path / f"mnist_{name}_lmdb")
        assert len(keys) == count
        assert keys[-1] == f"{count - 1:08}"
        assert (images[:, 0] == part.images).all()
        assert (labels == part.labels).all()
        share = np.bincount(part.labels, minlength=10) / count
        assert share.min() > 0.07
        assert share.max() < 0.13
        # A digit is ink (255) on ground (0), centred: the corners are empty, the middle is not.
        assert part.images[:, :2, :2].max() == 0
        assert part.images[:, 8:20, 8:20].mean() > 50
    assert mnist.PACKAGED.stat().st_size < 3e6
    assert mnist.PACKAGED.with_name("LICENSE-MNIST.md").exists()


def test_packing_takes_evenly_spaced_digits(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "PACKAGED", tmp_path / "packed.xz")
    monkeypatch.setattr(mnist, "PACKAGED_TRAIN", 100)
    monkeypatch.setattr(mnist, "PACKAGED_TEST", 20)
    images = np.random.default_rng(0).integers(0, 256, (600, 28, 28), dtype=np.uint8)
    labels = images[:, 0, 0]
    whole = mnist.Digits(images, labels), mnist.Digits(images[:60], labels[:60])
    mnist.pack(mnist.Mnist(*whole, ""), mnist.PACKAGED)
    train, test, _ = mnist.load("packaged")
    assert (train.images == images[::6]).all()
    assert (train.labels == labels[::6]).all()
    assert (test.images == images[:60:3]).all()
    assert (test.labels == labels[:60:3]).all()


@pytest.mark.parametrize("compressed", [True, False])
def test_files(small, tmp_path, capsys, compressed):
    contents, images, labels = small
    for name, content in contents.items():
        if compressed:
            (tmp_path / name).write_bytes(content)
        else:
            (tmp_path / name.removesuffix(".gz")).write_bytes(gzip.decompress(content))
    mnist.make(tmp_path / "out", files=tmp_path)
    assert f"files of {tmp_path}" in capsys.readouterr().out
    keys, found, numbers = read_images(tmp_path / "out" / "mnist_test_lmdb")
    assert keys == [f"{i:08}" for i in range(10)]
    assert (found[:, 0] == images[20:]).all()
    assert (numbers == labels[20:]).all()


def test_bad_files(small, tmp_path):
    contents, *_ = small
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    images = tmp_path / "train-images-idx3-ubyte.gz"
    for damaged in (contents[images.name][:-100], gzip.compress(b"\0" * 20), b"", b"hello"):
        images.write_bytes(damaged)
        with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz is not a whole MNIST"):
            mnist.load(files=tmp_path)
    images.write_bytes(contents["t10k-images-idx3-ubyte.gz"])
    with pytest.raises(UserError, match="10 images, but 20 labels"):
        mnist.load(files=tmp_path)
    images.unlink()
    with pytest.raises(UserError, match=r"has no file train-images-idx3-ubyte\.gz"):
        mnist.load(files=tmp_path)


@pytest.fixture
def mirrors(small, monkeypatch):
    """A broken mirror, one with another file, and one that is right, on this machine."""
    contents, *_ = small

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            _, mirror, name = self.path.split("/")
            self.send_response(404 if mirror == "broken" else 200)
            self.end_headers()
            if mirror != "broken":
                self.wfile.write(contents[name] + (b"!" if mirror == "wrong" else b""))

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(mnist, "FILES", digests)
    monkeypatch.setattr(mnist, "MIRRORS", (address + "broken/", address + "wrong/"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield address
    server.shutdown()
    server.server_close()


def test_download_goes_from_mirror_to_mirror(small, mirrors, monkeypatch):
    _, images, labels = small
    with pytest.raises(UserError, match=r"broken/: .*404.*; .*wrong/.* another SHA-256"):
        mnist.load("download")
    monkeypatch.setattr(mnist, "MIRRORS", (*mnist.MIRRORS, mirrors + "right/"))
    train, test, origin = mnist.load("auto")
    assert origin.endswith("/right/")
    assert (train.images == images[:20]).all()
    assert (test.labels == labels[20:]).all()


def test_without_a_mirror_the_packaged_digits_are_taken(mirrors, capsys):
    assert len(mnist.load("auto").train.images) == 10_000
    assert "Taking the packaged subset instead" in capsys.readouterr().out


def test_a_slow_mirror_is_given_up_where_the_package_will_do(mirrors, monkeypatch, capsys):
    monkeypatch.setattr(mnist, "MIRRORS", (mirrors + "right/",))
    monkeypatch.setattr(mnist, "_PATIENCE_AUTO", 0.0)
    assert len(mnist.load("auto").train.images) == 10_000
    assert "right/: too slow" in capsys.readouterr().out
    assert len(mnist.load("download").train.images) == 20


def test_bad_arguments(tmp_path):
    with pytest.raises(UserError, match='unknown source "web"'):
        mnist.make(tmp_path, source="web")
    with pytest.raises(UserError, match="name the folder"):
        mnist.make(tmp_path, source="files")
