"""`osucaffe data folder`, and docs/photos.md, whose commands run as they stand there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from osucaffe.data.pictures.image import resize
from osucaffe.data.sets.folder import read_photo
from osucaffe.proto import read_mean, read_net
from tests.cli.conftest import ROOT, Cli
from tests.data.records import read_images

from .photos import make_photos

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


def test_a_split_of_the_folder_is_used(cli: Cli, photos: Path) -> None:
    for part, files in ("Valid", "*1*"), ("test", "*2*"), ("train", "*"):
        for path in sorted(photos.glob(f"[!Vt]*/more/{files}.*")):
            target = photos / part / path.parts[-3] / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    for name in "bird", "cat", "dog":
        (photos / name / "more").rmdir()
        (photos / name).rmdir()
    copy = photos / "test" / "cat" / "again.jpg"
    copy.write_bytes((photos / "train" / "cat" / "a photo 0.jpg").read_bytes())
    done = cli.ok("data", "folder", "photos", "--out=data", "--size=16")
    assert "class  label  training  validation  test\nbird       0         8" in done.out
    assert "1 of 91 photographs are copies of others: test/cat/again.jpg of train" in done.err
    assert "1 of the 31 photographs for test have copies among those for training" in done.err
    for part, folder in ("val", "Valid"), ("test", "test"), ("train", "train"):
        records = listed(cli.folder / "data" / f"{part}_lmdb")
        assert len(records) == len([*(photos / folder).rglob("*.*")])
        assert all(
            name.startswith(f"{folder}/{('bird', 'cat', 'dog')[of]}/") for name, of, _ in records
        )
    cli.ok("new", "cifar10_quick", "--data=data", "--out=net")
    layers = read_net(cli.folder / "net" / "train_val.prototxt").layer[:3]
    rules = [layer.include[0] for layer in layers]
    assert [[*rule.stage] for rule in rules] == [[], [], ["unseen"]]
    assert [[*rule.not_stage] for rule in rules] == [[], ["unseen"], []]
    assert [layer.data_param.source for layer in layers[1:]] == ["data/val_lmdb", "data/test_lmdb"]


def test_copies_stay_on_one_side(cli: Cli, photos: Path) -> None:
    for at, path in enumerate(sorted((photos / "cat" / "more").iterdir())):
        shutil.copy(path, path.with_name(f"copy {at}.jpg"))
    done = cli.ok("data", "folder", "photos", "--out=data", "--size=16", "--val_share=0.5")
    assert "photos: 30 of 120 photographs are copies of others: cat/more/" in done.err
    text = [(cli.folder / "data" / f"{part}.txt").read_text() for part in ("train", "val")]
    names = sorted(path.name for path in (photos / "cat" / "more").glob("a photo*"))
    for at, name in enumerate(names):
        assert (f"more/{name} 1" in text[0]) == (f"copy {at}.jpg 1" in text[0])
    (photos / "dog" / "copy.jpg").write_bytes((photos / "cat/more/copy 3.jpg").read_bytes())
    done = cli.ok("data", "folder", "photos", "--out=data", "--size=16")
    assert "photos: one picture is in two classes: dog/copy.jpg, cat/more/a photo 11" in done.err


def test_what_is_rare_or_left_out_is_told(cli: Cli, photos: Path) -> None:
    for path in [*(photos / "cat" / "more").iterdir()][2:]:
        path.unlink()
    for name in (
        "notes.txt",
        "more/film.MP4",
        "more/other.txt",
        "more/Thumbs.db",
        "more/.hidden.txt",
    ):
        (photos / "dog" / name).touch()
    done = cli.ok("data", "folder", "photos", "--out=data", "--size=16")
    rows = {row.split()[0]: row.split()[2:4] for row in done.out.splitlines()[1:4]}
    assert rows["cat"] == ["1", "1"]
    assert "Fewer than 20 photographs for validation of bird, cat, dog: " in done.err
    assert re.search(
        r"The largest class has \d+ photographs for training, the smallest 1: ", done.err
    )
    told = "photos/dog: left out 3 files that are not images: 2 .txt (more/other.txt), 1 .mp4 ("
    assert told in done.err


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
