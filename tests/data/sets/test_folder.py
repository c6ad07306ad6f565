"""Photographs in class folders, and in folders of a split."""

from __future__ import annotations

from pathlib import Path

import pytest

from osucaffe.data.sets.folder import find_photos
from osucaffe.data.streams.image_list import Entry
from osucaffe.errors import UserError


def touch(root: Path, *names: str) -> None:
    """Make files without content, and their folders."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_folders_that_will_not_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UserError, match=r"nowhere: cannot read this folder: No such file"):
        find_photos(str(tmp_path / "nowhere"))
    (tmp_path / "cat").mkdir()
    (tmp_path / ".hidden").mkdir()
    with pytest.raises(
        UserError, match=r"images for each of two or more classes .* but there is none"
    ):
        find_photos(str(tmp_path))
    assert "cat: no images in this folder (.jpg, .jpeg, " in caplog.text
    for name in "ant", "dog":
        (tmp_path / name / ".trash").mkdir(parents=True)
        for file in "1.jpg", "._1.jpg", ".trash/2.jpg":
            (tmp_path / name / file).touch()
    found = find_photos(str(tmp_path))
    assert found == ({"train": [Entry("ant/1.jpg", 0), Entry("dog/1.jpg", 1)]}, ["ant", "dog"])


@pytest.mark.parametrize("name", ["cat/a\nb.jpg", "c\u2028at/a.jpg", " /a.jpg", " cat/a.jpg"])
def test_names_that_no_list_can_hold(name: str, tmp_path: Path) -> None:
    for each in (name, "dog/a.jpg"):
        (tmp_path / each).parent.mkdir()
        (tmp_path / each).touch()
    with pytest.raises(UserError, match=r"rename .*lists, one name per line, cannot hold it"):
        find_photos(str(tmp_path))


def test_a_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path, "Training/b/1.jpg", "Training/a/2.JPG", "validation/b/x/3.jfif", "labels.txt")
    parts, classes = find_photos(str(tmp_path))
    assert classes == ["a", "b"]
    assert parts == {
        "train": [Entry("Training/a/2.JPG", 0), Entry("Training/b/1.jpg", 1)],
        "val": [Entry("validation/b/x/3.jfif", 1)],
    }
    assert "validation: has no image of a" in caplog.text
    touch(tmp_path, "test/a/1.png", "test/b/2.png")
    assert [*find_photos(str(tmp_path))[0]] == ["train", "val", "test"]
    touch(tmp_path, "test/c/1.png")
    with pytest.raises(UserError, match=r"test: has classes that .*Training does not have: c: "):
        find_photos(str(tmp_path))


@pytest.mark.parametrize(
    "names",
    [
        ("train/a/1.jpg", "train/b/1.jpg", "cats/1.jpg"),
        ("train/1.jpg", "val/1.jpg"),
        ("val/a/1.jpg", "val/b/1.jpg", "test/a/1.jpg", "test/b/1.jpg"),
        ("train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "valid/a/1.jpg", "valid/b/1.jpg"),
        ("train/a/1.jpg", "train/b/1.jpg", "val/1.jpg"),
    ],
)
def test_what_looks_like_a_split_and_is_none(tmp_path: Path, names: tuple[str, ...]) -> None:
    touch(tmp_path, *names)
    with pytest.raises(UserError, match=r"looks like a split but is not one: give train/CLASS, "):
        find_photos(str(tmp_path))


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    touch(tmp_path, "car/1.jpg", "train/1.jpg", "train/more/2.jpg")
    assert find_photos(str(tmp_path))[1] == ["car", "train"]
