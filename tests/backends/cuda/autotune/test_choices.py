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


@pytest.mark.parametrize(
    ("key", "known", "chosen"),
    [("b", ["z"], "z"), ("a", ["x", "z"], "x"), ("a", ["z"], "z")],
    ids=["both are remembered", "of two the first stays", "one that is gone is replaced"],
)
def test_another_process_chooses_meanwhile(key: str, known: list[str], chosen: str) -> None:
    mine, theirs = Choices("device"), Choices("device")
    assert mine.put("a", "x", 1.0, ["x", "z"]) == "x"
    assert theirs.put(key, "z", 0.9, known) == chosen
    first, second = ("x", 1.0), ("z", 0.9)
    expected = {"a": first, key: second if chosen == "z" else first}
    assert theirs.get(key) == expected[key]
    assert {name: Choices("device").get(name) for name in expected} == expected


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
