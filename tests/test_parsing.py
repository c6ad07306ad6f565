"""Checks conversions of text from files: what is a number, a name, a literal, and what is not."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from osucaffe.cli import main
from osucaffe.data.streams.image_list import read_list
from osucaffe.data.streams.windows import read_windows
from osucaffe.errors import UserError
from osucaffe.files import read_bytes
from osucaffe.forks.ssd.make_annotated import read_coco
from osucaffe.parsing import as_float, as_int, as_name, from_json, lines_of

NONE_WHOLE = (
    "",
    "1_000",
    "1.0",
    "٣",
    "0x10",
    "1e3",
    "nan",
    "9" * 5000,
    "2147483648",
    True,
    1.5,
    None,
)
NO_NUMBERS = (
    "",
    "1_0.5",
    "nan",
    "inf",
    "infinity",
    "٣.5",
    "1e39",
    "0x1p3",
    "1" * 5000,
    True,
    None,
    [1],
)


def test_numbers() -> None:
    assert [as_int(each) for each in ("7", " -3 ", "+5", 12, "-2147483648")] == [
        7,
        -3,
        5,
        12,
        -(2**31),
    ]
    assert [as_float(each) for each in ("7", " -.5", "1.", "2e-3", 4)] == [7, -0.5, 1, 0.002, 4]


@pytest.mark.parametrize("value", NONE_WHOLE, ids=lambda value: repr(value)[:12])
def test_no_whole_number(value: object) -> None:
    with pytest.raises(ValueError, match=r"is not an integer|is not from"):
        as_int(value)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: repr(value)[:12])
def test_no_number(value: object) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        as_float(value)


def test_what_is_long_takes_no_time_with_its_square() -> None:
    begun = time.process_time()
    for text in "1" * 300_000 + "x", "1." + "1" * 300_000 + "x", "1e" + "1" * 300_000 + "x":
        with pytest.raises(ValueError, match="is not a number"):
            as_float(text)
    assert time.process_time() - begun < 2


def test_json() -> None:
    assert from_json('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    for text in "[" * 100_000, "9" * 30, "{":
        with pytest.raises(ValueError):  # noqa: PT011
            from_json(text)
    for name in "", "a\nb", "\x1b[2J", "\ud800", 3:
        with pytest.raises(ValueError, match="is not a name"):
            as_name(name)


def test_lines_end_as_in_any_system_and_nowhere_else() -> None:
    assert lines_of("a\r\nb\nc\rd\x85e\u2028f\x0cg".encode()) == [
        "a",
        "b",
        "c",
        "d\x85e\u2028f\x0cg",
    ]


def test_a_name_that_is_not_utf_8_is_opened_as_it_lies_there(tmp_path: Path) -> None:
    name = b"na\xefve.png"
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / name.decode(errors="surrogateescape"))
    (tmp_path / "list.txt").write_bytes(name + b" 3\n")
    [entry] = read_list(str(tmp_path / "list.txt"))
    assert entry.label == 3
    assert read_bytes(tmp_path / entry.name)[1:4] == b"PNG"


@pytest.mark.parametrize("name", ["a\0b", "a\ud800"])
def test_a_name_that_no_file_has(name: str) -> None:
    with pytest.raises(UserError, match="not a valid file name"):
        read_bytes(name)


@pytest.mark.parametrize("line", ["a.png 1_0", "a.png ٣", "a.png 2147483648", "a.png 1.5"])
def test_a_label_that_is_none(line: str, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"a.png 1\n{line}\n")
    with pytest.raises(UserError, match="line 2"):
        read_list(str(tmp_path / "list.txt"))


@pytest.mark.parametrize("window", ["1 nan 0 0 5 5", "1_0 0.5 0 0 5 5", "1 0.5 0 0 5 99999999999"])
def test_a_window_that_is_none(window: str, tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text(f"# 0\na.png\n3\n8\n8\n1\n{window}\n")
    with pytest.raises(UserError, match="line 7"):
        read_windows(str(tmp_path / "w.txt"))


COCO = '{"categories": [{"id": 1, "name": "a"}], "images": [%s], "annotations": []}'
IMAGE = '{"id": 1, "file_name": "%s", "width": %s, "height": 4}'


@pytest.mark.parametrize(
    "image", [IMAGE % ("a\\ud800", 4), IMAGE % ("a\\u0000", 4), IMAGE % ("a", "1" * 400),
              IMAGE % ("a", "true"), "[" * 100_000]
)  # fmt: skip
def test_json_of_coco_that_is_damaged(image: str, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(COCO % image)
    with pytest.raises(UserError, match=r"c\.json is not a COCO file"):
        read_coco(tmp_path, tmp_path / "c.json")


def test_class_folders_whose_names_are_not_utf_8(tmp_path: Path, capfd) -> None:
    for label, name in enumerate([b"na\xefve", b"plain"]):
        folder = tmp_path / "photos" / name.decode(errors="surrogateescape")
        folder.mkdir(parents=True)
        for number in range(12):
            pixels = np.full((6, 6, 3), 20 * label + number, np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    line = ["data", "folder", str(tmp_path / "photos"), "--out", str(tmp_path / "db"), "--size=6"]
    assert main(line) == 0, capfd.readouterr().err
    assert b"na\xefve" in (tmp_path / "db" / "labels.txt").read_bytes()
