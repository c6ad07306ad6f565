"""models/edsr/photographs.py: packages are unpacked, photographs chosen, shrunk, split, written."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from osucaffe.data.databases.database import open_database
from osucaffe.data.databases.datum import parse_datum, pixels
from osucaffe.data.pictures.bicubic import shrink
from osucaffe.data.pictures.transform import Transform
from osucaffe.data.streams.patches import PatchSource
from osucaffe.errors import UserError
from osucaffe.proto import caffe_pb2

from .scripts import load_script


@pytest.fixture
def photographs(root, monkeypatch):
    module = load_script(root / "models" / "edsr" / "photographs.py")
    monkeypatch.setattr(
        module, "PHOTOGRAPHS", {"some-backgrounds": ["a", "b", "c", "e"], "wallpapers": ["Lake"]}
    )
    return module


def photo(width, height, seed=0):
    values = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    return Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)


def write_deb(path, files):
    """An archive by ar(1) of two members, the second an archive by tar(1)."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    members = {"debian-binary": b"2.0", "data.tar.xz": content.getvalue()}  # the first is odd
    with open(path, "wb") as file:
        file.write(b"!<arch>\n")
        for name, data in members.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode())
            file.write(data + b"\n" * (len(data) % 2))


def jpeg(image):
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=95)
    return stream.getvalue()


@pytest.fixture
def debs(tmp_path):
    folder = tmp_path / "debs"
    folder.mkdir()
    plain = {f"./usr/share/backgrounds/{name}.jpg": jpeg(photo(200, 160)) for name in "abcd"}
    plain["./usr/share/backgrounds/e.jpg"] = jpeg(photo(106, 90))
    plain["./usr/share/doc/some-backgrounds/copyright"] = b"free"
    write_deb(folder / "some-backgrounds_1.0_all.deb", plain)
    lake = "./usr/share/wallpapers/Lake/contents"
    write_deb(folder / "wallpapers_2_all.deb", {
        f"{lake}/screenshot.jpg": jpeg(photo(40, 40)),
        f"{lake}/images/300x200.jpg": jpeg(photo(300, 200)),
        "./usr/share/wallpapers/Drawn/contents/images/300x200.jpg": jpeg(photo(300, 200)),
    })  # fmt: skip
    return folder


def test_databases(photographs, debs, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    monkeypatch.setattr(photographs, "held_out", lambda name: name.endswith("/b"))
    monkeypatch.setattr("sys.argv", [
        "photographs.py", "--debs", str(debs), "--out", str(out), "--pixels", "0.01",
    ])  # fmt: skip
    photographs.main()
    assert "4 photographs for training, 1 for validation" in capsys.readouterr().out
    train, low, val = (
        open_database(out / f"{each}_lmdb") for each in ("train", "train_low", "val")
    )
    names = [bytes(key).decode().partition("_")[2] for key, _ in train.read(0, 4)]
    assert names == [*(f"some-backgrounds/{name}" for name in "ace"), "wallpapers/Lake"]
    sizes = []
    for number in range(4):
        large, small = (pixels(parse_datum(each.value(number))) for each in (train, low))
        sizes.append(large.shape)
        np.testing.assert_array_equal(small, shrink(large, 2))
    # Shrunk by 2, 2, 1 and 3: all have at most 10,000 pixels, and even extents.
    assert sizes == [(3, 80, 100), (3, 80, 100), (3, 90, 106), (3, 66, 100)]
    [(_, value)] = val.read(0, 1)
    with Image.open(out / "val" / "b.png") as held:
        expected = np.asarray(held)[:, :, ::-1].transpose(2, 0, 1)
    np.testing.assert_array_equal(pixels(parse_datum(value)), expected)
    assert (out / "licences" / "some-backgrounds.txt").read_text() == "free"
    transform = Transform(caffe_pb2.TransformationParameter(), "TRAIN", pytest.fail)
    source = PatchSource(train, low, transform, scale=2, side=16, random=True, seed=1)
    arrays = [np.empty((2, *shape), np.float32) for shape in source.shapes]
    source.fill(0, arrays)
    assert [array.shape for array in arrays] == [(2, 3, 16, 16), (2, 3, 32, 32)]


def test_bad_packages(photographs, debs, tmp_path):
    def read(folder):
        return list(photographs.photographs(folder, tmp_path / "licences"))

    with pytest.raises(UserError, match=r"there is no some-backgrounds_\*.deb in it"):
        read(tmp_path)
    photographs.PHOTOGRAPHS["wallpapers"].append("Sea")
    with pytest.raises(UserError, match="holds no photograph Sea"):
        read(debs)
    (debs / "some-backgrounds_1.0_all.deb").write_bytes(b"not one")
    with pytest.raises(UserError, match="not a whole package of Debian"):
        read(debs)


def test_the_split_is_the_same_everywhere(root):
    module = load_script(root / "models" / "edsr" / "photographs.py")
    names = [f"{package}/{name}" for package, names in module.PHOTOGRAPHS.items() for name in names]
    assert len(names) == 37
    held = sorted(name.partition("/")[2] for name in names if module.held_out(name))
    assert held == [
        *("Aqua", "BytheWater", "FreshFlower", "Garden", "GreenMeadow", "Grey"),
        *("OneStandsOut", "Picture_0B_by_freespace", "TwoWings"),
    ]
