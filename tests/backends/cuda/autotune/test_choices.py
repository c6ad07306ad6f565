"""What was chosen is remembered from run to run, and a broken memory only costs time."""

from __future__ import annotations

from pathlib import Path

import pytest

from osucaffe.backends.cuda.autotune.choices import Choices


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSUCAFFE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def remember(name: str, **chosen: str) -> Choices:
    choices = Choices(name)
    for key, choice in chosen.items():
        assert choices.put(key, choice, 0.25, [choice]) == choice
    return choices


def test_a_choice_outlives_the_process() -> None:
    remember("device", what="this way")
    again = Choices("device")
    assert again.get("what") == ("this way", 0.25)
    assert again.get("else") is None
    assert Choices("other device").get("what") is None


def test_others_may_write_at_the_same_time() -> None:
    mine, theirs = Choices("device"), Choices("device")
    assert mine.put("a", "x", 1.0, ["x", "z"]) == "x"
    assert theirs.put("b", "y", 2.0, ["y"]) == "y"
    assert Choices("device").get("a") == ("x", 1.0)
    assert Choices("device").get("b") == ("y", 2.0)


def test_of_two_choices_the_first_stays() -> None:
    mine, theirs = Choices("device"), Choices("device")
    assert mine.put("a", "x", 1.0, ["x", "z"]) == "x"
    assert theirs.put("a", "z", 0.9, ["x", "z"]) == "x"
    assert theirs.get("a") == ("x", 1.0)
    assert Choices("device").get("a") == ("x", 1.0)


def test_a_choice_that_is_gone_is_replaced() -> None:
    mine, theirs = Choices("device"), Choices("device")
    mine.put("a", "x", 1.0, ["x", "z"])
    assert theirs.put("a", "z", 0.9, ["z"]) == "z"
    assert Choices("device").get("a") == ("z", 0.9)


def test_nothing_is_left_beside_the_file(folder: Path) -> None:
    remember("device", a="x", b="y")
    assert [path.name for path in folder.iterdir()] == ["device.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": ["x", "slow"]}', "\x00\xff"])
def test_a_broken_file_is_as_good_as_none(text: str, folder: Path) -> None:
    folder.mkdir()
    (folder / "device.json").write_text(text)
    assert Choices("device").get("a") is None
    remember("device", a="x")
    assert Choices("device").get("a") == ("x", 0.25)


def test_what_cannot_be_written_is_remembered_for_now(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    assert remember("device", a="x").get("a") == ("x", 0.25)
