"""Databases of images with boxes, made from files as PASCAL VOC and COCO have them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from osucaffe.cli import main
from osucaffe.data.databases.database import open_database
from osucaffe.data.databases.datum import pixels
from osucaffe.errors import UserError
from osucaffe.forks.ssd.annotated import parse_annotated
from osucaffe.forks.ssd.make_annotated import read_label_map
from osucaffe.proto import caffe_pb2

OBJECT = (
    "<object><name>{}</name><difficult>{}</difficult><bndbox><xmin>4</xmin><ymin>6</ymin>"
    "<xmax>12</xmax><ymax>24</ymax></bndbox></object>"
)


def write_image(file: Path) -> None:
    file.parent.mkdir(exist_ok=True, parents=True)
    image = np.full((24, 16, 3), 90, np.uint8)
    file.write_bytes(simplejpeg.encode_jpeg(image))


def voc(folder: Path, names: list[str]) -> Path:
    for part in "Annotations", "ImageSets/Main":
        (folder / part).mkdir(parents=True)
    (folder / "ImageSets" / "Main" / "val.txt").write_text("a\nb\n")
    for image in "ab":
        write_image(folder / "JPEGImages" / f"{image}.jpg")
        objects = "".join(OBJECT.format(name, place) for place, name in enumerate(names))
        size = "<size><width>16</width><height>24</height></size>"
        (folder / "Annotations" / f"{image}.xml").write_text(
            f"<annotation>{size}{objects}</annotation>"
        )
    return folder


def test_voc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = voc(tmp_path / "VOC2007", ["dog", "aeroplane", "dog"][:2])
    main(["data", "annotated", str(tmp_path / "lmdb"), "--voc", str(folder), "--split", "val"])
    assert "2 images" in capsys.readouterr().out
    database = open_database(tmp_path / "lmdb")
    records = database.read(0, 2)
    assert [bytes(key) for key, _ in records] == [b"00000000_a.jpg", b"00000001_b.jpg"]
    datum, found = parse_annotated(records[1][1])
    assert pixels(datum).shape == (3, 24, 16) == datum.shape
    np.testing.assert_array_equal(found.labels, [[12, 0], [1, 0]])
    np.testing.assert_allclose(found.boxes, [[0.25, 0.25, 0.75, 1]] * 2)
    np.testing.assert_array_equal(found.difficult, [False, True])
    assert read_label_map(tmp_path / "lmdb.labelmap.prototxt")[11] == ("dog", 12)
    main(["data", "inspect", str(tmp_path / "lmdb")])
    said = capsys.readouterr().out
    assert "JPEG with boxes" in said
    assert "2 different, 1 to 12" in said
    main(["data", "verify", str(tmp_path / "lmdb")])
    assert "all 2 records are good" in capsys.readouterr().out


def test_coco(tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "7.jpg")
    content = {
        "images": [{"id": 7, "file_name": "7.jpg", "width": 16, "height": 24}],
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
        "annotations": [{"image_id": 7, "category_id": 18, "bbox": [4, 6, 8, 18], "iscrowd": 1}],
    }
    (tmp_path / "instances.json").write_text(json.dumps(content))
    main(["data", "annotated", str(tmp_path / "lmdb"), "--coco", str(tmp_path / "instances.json"),
          "--images", str(tmp_path / "images")])  # fmt: skip
    [(_, value)] = open_database(tmp_path / "lmdb").read(0, 1)
    _, found = parse_annotated(value)
    np.testing.assert_array_equal(found.labels, [[2, 0]])
    np.testing.assert_allclose(found.boxes, [[0.25, 0.25, 0.75, 1]])
    assert found.difficult.all()
    assert read_label_map(tmp_path / "lmdb.labelmap.prototxt") == [("person", 1), ("dog", 2)]


def test_bad_files_are_named(tmp_path: Path) -> None:
    from osucaffe.forks.ssd.make_annotated import read_coco, read_voc

    with pytest.raises(UserError, match=r"val\.txt"):
        read_voc(tmp_path, "val", {})
    with pytest.raises(UserError, match=r"a\.xml: cow is not in the label map"):
        read_voc(voc(tmp_path / "v", ["cow"]), "val", {"dog": 1})
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UserError, match=r"bad\.json is not a COCO file"):
        read_coco(tmp_path, tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"width": 0}, "a.jpg is 0x24, with boxes "),
        ({"bbox": [4, float("nan"), 8, 18]}, '"nan" is not a number that float32 holds'),
        ({"images": []}, "no images for it"),
    ],
)
def test_objects_that_are_nowhere(
    changes: dict[str, object], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_image(tmp_path / "a.jpg")
    image = {"id": 1, "file_name": "a.jpg", "width": 16, "height": 24} | changes
    found = {"image_id": 1, "category_id": 1, "bbox": [4, 6, 8, 18]} | changes
    content = {"categories": [{"id": 1, "name": 7}], "images": [image], "annotations": [found]}
    (tmp_path / "c.json").write_text(json.dumps(content | changes))
    out, given = str(tmp_path / "lmdb"), str(tmp_path / "c.json")
    assert main(["data", "annotated", out, "--coco", given, "--images", str(tmp_path)]) == 1
    assert told in capsys.readouterr().err
    assert not Path(out).exists()


@pytest.mark.parametrize(
    ("size", "box", "told", "expected"),
    [
        ("<size><width>16</width><height>24</height></size>", (4, 6, 12, 24), [], (4, 6, 12, 24)),
        ("", (4, 6, 12, 24), ["no size: that of a.jpg counts"], (4, 6, 12, 24)),
        (
            "<size><width>24</width><height>16</height></size>",
            (6, 4, 24, 12),
            ["says that a.jpg is 24 x 16, but it is 16 x 24"],
            (4, 6, 16, 18),
        ),
        ("", (4, 6, 17, 24), ["a bounding box exceeds the image", "no size"], (4, 6, 16, 24)),
        ("", (-1, 6, 12, 24), ["a bounding box exceeds the image", "no size"], (0, 6, 12, 24)),
        ("", (12, 6, 4, 24), ["a bounding box ends before it begins", "no size"], (12, 6, 4, 24)),
    ],
)
def test_odd_boxes_are_told_as_ssd_tells_them(
    size: str, box: tuple[int, ...], told: list[str], expected: tuple[int, ...], tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    from osucaffe.forks.ssd.make_annotated import make_database, read_voc

    folder = voc(tmp_path / "v", ["dog"])
    sides = "".join(
        f"<{side}>{value}</{side}>"
        for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    (folder / "ImageSets/Main/val.txt").write_text("a\n")
    (folder / "Annotations" / "a.xml").write_text(
        f"<annotation>{size}<object><name>dog</name><difficult>Unspecified</difficult>"
        f"<bndbox>{sides}</bndbox></object></annotation>"
    )
    make_database(read_voc(folder, "val", {"dog": 1}), tmp_path / "db")
    [(_, value)] = open_database(tmp_path / "db").read(0, 1)
    _, found = parse_annotated(value)
    np.testing.assert_allclose(found.boxes * [16, 24, 16, 24], [expected], rtol=1e-6)
    assert not found.difficult.any()
    assert len(caplog.messages) == len(told)
    for message, text in zip(caplog.messages, told, strict=True):
        assert text in message
        assert message.startswith(f"{folder}/Annotations/a.xml: ")


SSD = "--anno_type=detection --label_map_file={0}/map --shuffle=False --check_size=False"
JSON = {
    "image": {"width": 16, "height": 24},
    "annotation": [
        {"category_id": "dog", "bbox": [4, 6, 8, 18], "iscrowd": 0},
        {"category_id": "dog", "bbox": [0, 0, 16, 12], "iscrowd": 1},
    ],
}


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """An image with two dogs in three forms of annotation, and one without any; a label map."""
    folder = tmp_path / "set"
    for image in "ab":
        write_image(folder / f"{image}.jpg")
    second = OBJECT.format("dog", 1).replace("4<", "0<", 1).replace("6<", "0<")
    second = second.replace("12<", "16<").replace("24<", "12<")
    size = "<size><width>16</width><height>24</height></size>"
    text = f"<annotation>{size}{OBJECT.format('dog', 0)}{second}</annotation>"
    (folder / "a.xml").write_text(text)
    (folder / "a.json").write_text(json.dumps(JSON))
    (folder / "a.txt").write_text("3 4 6 12 24\n3 0 0 16 12\n")
    for kind in "xml", "json", "txt":
        (tmp_path / kind).write_text(f"a.jpg a.{kind}\nb.jpg b.{kind}\n")
    names = (("none_of_the_above", 0), ("dog", 3), ("cat", 4))
    items = (f'item {{ name: "{name}" label: {number} }}\n' for name, number in names)
    (tmp_path / "map").write_text("".join(items))
    return tmp_path


@pytest.mark.parametrize("kind", ["xml", "json", "txt"])
def test_lists_as_ssd_converts_them(
    listed: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    words = [*SSD.format(listed).split(), f"--label_type={kind}", "--encoded=True"]
    places = [f"{listed}/set/", f"{listed}/{kind}", f"{listed}/db"]
    assert main(["convert_annoset", *words, *places]) == 0
    first, second = open_database(listed / "db").read(0, 2)
    assert [bytes(key) for key, _ in (first, second)] == [b"00000000_a.jpg", b"00000001_b.jpg"]
    datum, found = parse_annotated(first[1])
    assert datum.shape == (3, 24, 16)
    assert bytes(datum.data) == (listed / "set" / "a.jpg").read_bytes()
    np.testing.assert_array_equal(found.labels, [[3, 0], [3, 1]])
    np.testing.assert_allclose(found.boxes, [[0.25, 0.25, 0.75, 1], [0, 0, 1, 0.5]])
    np.testing.assert_array_equal(found.difficult, [False, kind != "txt"])
    assert len(parse_annotated(second[1])[1].labels) == 0
    assert not caplog.messages


def test_images_as_ssd_stores_them(listed: Path) -> None:
    def shape(*words: str) -> tuple[int, ...]:
        line = ["--gray", *words, f"{listed}/set/", f"{listed}/labels", f"{listed}/db"]
        assert main(["convert_annoset", *line]) == 0
        [(key, value)] = open_database(listed / "db").read(0, 1)
        assert bytes(key) == b"00000000_a.jpg"
        datum = caffe_pb2.AnnotatedDatum.FromString(bytes(value))
        assert (datum.datum.label, datum.HasField("type"), datum.datum.encoded) == (7, False, False)
        image = np.frombuffer(datum.datum.data, np.uint8)
        extents = datum.datum.channels, datum.datum.height, datum.datum.width
        assert len(image) == np.prod(extents)
        assert (abs(image.astype(int) - 90) < 3).all()
        return extents

    (listed / "labels").write_text("a.jpg 7\n")
    assert shape() == (1, 24, 16)
    assert shape("--resize_height=5", "--resize_width=6") == (1, 5, 6)
    assert shape("--min_dim=8") == (1, 24, 16)
    assert shape("--min_dim=20") == (1, 30, 20)
    assert shape("--min_dim=20", "--max_dim=12") == (1, 12, 8)


def test_bad_lists_of_annotations(listed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str) -> str:
        assert main(["convert_annoset", *words, f"{listed}/set/", f"{listed}/l", "db"]) == 1
        return capsys.readouterr().err

    def annotated(text: str, kind: str) -> str:
        (listed / "l").write_text("a.jpg a\n")
        (listed / "set" / "a").write_text(text)
        return refused(*SSD.format(listed).split(), f"--label_type={kind}")

    for text, kind in (
        ("3 4 6 12", "txt"), ("x 4 6 12 24", "txt"), ("{", "json"), ("[]", "json"),
        ('{"annotation": [{"bbox": [1], "category_id": "dog"}]}', "json"), ("<a>", "xml"),
    ):  # fmt: skip
        assert f"cannot read {listed}/set/a: " in annotated(text, kind)
    assert "is missing, or not in the label map" in annotated("{}", "json")
    other = json.dumps(JSON).replace("dog", "cow")
    assert "'cow' is missing, or not in the label map" in annotated(other, "json").replace(
        "cow is", "'cow' is"
    )
    (listed / "l").write_text("a.jpg\n")
    assert "line 1" in refused(*SSD.format(listed).split())
    assert "give --label_map_file" in refused("--anno_type=detection")


def test_sizes_of_a_list(listed: Path) -> None:
    places = [f"{listed}/set", f"{listed}/xml", f"{listed}/sizes"]
    assert main(["get_image_size", *places]) == 0
    assert (listed / "sizes").read_text() == "a 24 16\nb 24 16\n"
    (listed / "ids").write_text("b 12\na 11\n")
    assert main(["get_image_size", f"--name_id_file={listed}/ids", *places]) == 0
    assert (listed / "sizes").read_text() == "11 24 16\n12 24 16\n"
