"""`osucaffe data folder`, and docs/photos.md, whose commands run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from osucaffe.data.pictures.image import resize
from osucaffe.data.sets.folder import find_photos, read_photo, split
from osucaffe.data.streams.image_list import Entry
from osucaffe.errors import UserError
from osucaffe.proto import read_mean
from tests.data.records import read_images

from ..conftest import ROOT, Cli
from ..photos import make_photos

Image = pytest.importorskip("PIL.Image")
PAGE = ROOT / "docs" / "photos.md"


@pytest.fixture
def photos(cli: Cli) -> Path:
    """The folder photos, with 30 pictures of one colour, and of several kinds, a class."""
    return make_photos(cli.folder / "photos")


def listed(path: Path) -> list[tuple[str, int, np.ndarray]]:
    """Of each record the photograph, the label and the pixels."""
    return [
        (key[9:], int(label), image) for key, image, label in zip(*read_images(path), strict=True)
    ]


def test_folders_become_databases(cli: Cli, photos: Path) -> None:
    done = cli.ok("data", "folder", "photos", "--out=made/it", "--size=32")
    assert "made/it: 90 images of 3 classes\n" in done.out
    out = cli.folder / "made" / "it"
    assert (out / "labels.txt").read_text() == "bird\ncat\ndog\n"
    train, val = (listed(out / f"{name}_lmdb") for name in ("train", "val"))
    assert len(train) + len(val) == 90
    assert 8 <= len(val) <= 28
    for name, part in (("train", train), ("val", val)):
        lines = "".join(f"{photo} {label}\n" for photo, label, _ in part)
        assert (out / f"{name}.txt").read_text() == lines
    for photo, label, image in train:
        assert photo.startswith(("bird/", "cat/", "dog/")[label])
        assert image.shape == (3, 32, 32)
    assert len({label for _, label, _ in train[:10]}) > 1  # they are mixed
    mean = np.mean([image for _, _, image in train], axis=0)
    found = read_mean(str(out / "mean.binaryproto"))
    np.testing.assert_allclose(found.reshape(mean.shape), mean, rtol=1e-6)
    assert Image.open(out / "sheet.png").size[0] > 400


def test_broken_files_are_named_or_skipped(cli: Cli, photos: Path) -> None:
    (photos / "cat" / "broken.jpg").write_bytes(b"\xff\xd8\xff and no more")
    (photos / "cat" / "notes.txt").write_text("no image")
    command = "data", "folder", "photos", "--out=data", "--size=16", "--encode_type=jpg"
    assert "cannot read image photos/cat/broken.jpg" in cli.fails(*command).err
    done = cli.ok(*command, "--on_bad_record=skip")
    assert "Skipped: cannot read image photos/cat/broken.jpg" in done.err
    assert "data: 90 images of 3 classes (1 bad ones skipped)" in done.out
    done = cli(*command, "--val_share=1")
    assert done.code == 2
    assert "must be above 0 and below 1" in done.err


def test_lists_and_counts_hold_what_the_databases_hold(cli: Cli, photos: Path) -> None:
    for photo in [*(photos / "cat").rglob("*.*"), *(photos / "dog").rglob("*1*")]:
        photo.write_bytes(b"no image")
    done = cli.ok("data", "folder", "photos", "--out=data", "--size=8", "--on_bad_record=skip")
    counts = []
    for name in ("train", "val"):
        found = listed(cli.folder / "data" / f"{name}_lmdb")
        lines = (cli.folder / "data" / f"{name}.txt").read_text().splitlines()
        assert lines == [f"{photo} {label}" for photo, label, _ in found]
        counts.append([sum(label == each for _, label, _ in found) for each in range(3)])
    assert (cli.folder / "data" / "labels.txt").read_text() == "bird\ncat\ndog\n"
    rows = [line.split()[:4] for line in done.out.splitlines()[1:4]]
    wanted = zip(("bird", "cat", "dog"), "012", *counts, strict=True)
    assert rows == [list(map(str, row)) for row in wanted]
    assert counts[0][1] == counts[1][1] == 0
    assert "data: 48 images of 2 classes (42 bad ones skipped)" in done.out


def test_no_image_that_can_be_read_leaves_what_was_made_before(cli: Cli, photos: Path) -> None:
    command = "data", "folder", "photos", "--out=data", "--size=8", "--on_bad_record=skip"
    cli.ok(*command)
    before = {each: each.read_bytes() for each in (cli.folder / "data").rglob("*.*")}
    for photo in photos.rglob("*.*"):
        photo.write_bytes(b"no image")
    done = cli.fails(*command)
    assert re.search(r"osucaffe: data/train_lmdb: none of its \d+ images can be used$", done.err)
    assert before == {each: each.read_bytes() for each in (cli.folder / "data").rglob("*.*")}


def test_the_split_stays_when_photos_come() -> None:
    entries = [Entry(f"cat/{at}.jpg", 0) for at in range(2000)]
    train, val = split(entries[:1000], 0.2)
    assert 160 < len(val) < 240
    more_train, more_val = split(entries[::-1], 0.2)
    assert set(train) < set(more_train)
    assert val == [each for each in more_val if each in set(val)]
    assert set(more_val) < set(split(entries, 0.3)[1])
    with pytest.raises(UserError, match=r"none of 1 photographs is for (training|validation)"):
        split(entries[:1], 0.5)


def test_folders_that_will_not_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UserError, match=r"nowhere: cannot read this folder: No such file"):
        find_photos(str(tmp_path / "nowhere"))
    (tmp_path / "cat").mkdir()
    (tmp_path / ".hidden").mkdir()
    with pytest.raises(
        UserError, match=r"images for each of two or more classes .* but there is none"
    ):
        find_photos(str(tmp_path))
    assert "cat: there is no image in this folder (.jpg, .jpeg, " in caplog.text
    for name in "ant", "dog":
        (tmp_path / name / ".trash").mkdir(parents=True)
        for file in "1.jpg", "._1.jpg", ".trash/2.jpg":
            (tmp_path / name / file).touch()
    found = find_photos(str(tmp_path))
    assert found == ([Entry("ant/1.jpg", 0), Entry("dog/1.jpg", 1)], ["ant", "dog"])


@pytest.mark.parametrize("name", ["cat/a\nb.jpg", "c\u2028at/a.jpg", " /a.jpg", " cat/a.jpg"])
def test_names_that_no_list_can_hold(name: str, tmp_path: Path) -> None:
    for each in (name, "dog/a.jpg"):
        (tmp_path / each).parent.mkdir()
        (tmp_path / each).touch()
    with pytest.raises(UserError, match=r"rename .*lists, a name a line, cannot hold it"):
        find_photos(str(tmp_path))


def test_nothing_is_written_among_the_photographs(cli: Cli, photos: Path) -> None:
    for out in ("photos", "photos/cat/made"):
        done = cli("data", "folder", "photos", f"--out={out}", "--size=8")
        assert (done.code, done.out) == (1, "")
        assert f"osucaffe: --out {out}: is inside photos, whose folders are classes" in done.err


@pytest.mark.parametrize("orientation", range(1, 10))
def test_photos_are_turned_as_exif_says(tmp_path: Path, orientation: int) -> None:
    from PIL import ImageOps

    values = np.random.default_rng(2).integers(0, 256, (32, 48, 3), np.uint8)
    path = str(tmp_path / "photo.png")
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(values).save(path, exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(path)))[:, :, ::-1]
    height, width = upright.shape[:2]
    top, left = (height - 32) // 2, (width - 32) // 2
    inner = upright[top : top + 32, left : left + 32]
    np.testing.assert_array_equal(read_photo(path, 32), inner)
    np.testing.assert_array_equal(read_photo(path, 20, "squash"), resize(upright, 20, 20))


def test_photos_of_every_mode_become_colour(tmp_path: Path) -> None:
    from PIL import features

    grey = np.arange(64, dtype=np.uint8).reshape(8, 8) * 3
    path = str(tmp_path / "photo.png")
    Image.fromarray(grey).save(path)
    np.testing.assert_array_equal(read_photo(path, 8), grey[:, :, None].repeat(3, 2))
    clear = np.full((8, 8, 4), (10, 20, 30, 255), np.uint8)
    clear[:4, :, 3] = 0
    clear[4, :, 3] = 51
    Image.fromarray(clear).save(path)
    wanted = np.full((8, 8, 3), (30, 20, 10), np.uint8)
    wanted[:4], wanted[4] = 255, (210, 208, 206)
    np.testing.assert_array_equal(read_photo(path, 8), wanted)
    few = Image.fromarray(np.where(clear[:, :, 3:] > 99, clear[:, :, :3], 0), "RGB")
    palette = few.convert("P", palette=Image.Palette.ADAPTIVE)
    palette.save(path, transparency=palette.getpixel((0, 0)))
    wanted_few = np.where(clear[:, :, 3:] > 99, (30, 20, 10), 255)
    np.testing.assert_array_equal(read_photo(path, 8), wanted_few)
    if features.check("webp"):
        Image.fromarray(clear).save(tmp_path / "photo.webp", lossless=True, exact=True)
        np.testing.assert_array_equal(read_photo(str(tmp_path / "photo.webp"), 8), wanted)
