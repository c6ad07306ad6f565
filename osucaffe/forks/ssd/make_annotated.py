"""The conversion of PASCAL VOC and COCO to databases of annotated images, as SSD reads them."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from ...backends.tensor import Shape
from ...data.ahead.parallel_map import BadRecords, map_usable
from ...data.databases.database import record_key, write_database
from ...data.pictures.image import decode_content, read_content
from ...data.pictures.transform import unlike_first
from ...data.streams.image_list import read_entries, read_list
from ...errors import UserError, listed, reason
from ...files import read_bytes, read_file
from ...parsing import as_float, as_int, as_name, from_json, lines_of
from ...proto import caffe_pb2, read_text, write_text

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip


log = logging.getLogger("osucaffe")


class Entry(NamedTuple):
    """An image file and its objects: labels, boxes in pixels, difficult; the file that says so, and
    the (height, width) of the image according to it (None: it does not say; without a source, it
    never does); the image's name in a list; a label of the image as a whole, instead of objects."""

    image: Path
    labels: np.ndarray
    boxes: np.ndarray
    difficult: np.ndarray
    source: str
    size: tuple[float, float] | None
    name: str = ""
    label: int = -1

    def shares(self, size: tuple[int, int]) -> np.ndarray:
        """The boxes (B, 4) in fractions of the image, whose (height, width) this is, cut off at its
        edges. What SSD warns of is logged: another size, which counts, and odd boxes."""
        height, width = self.size or size
        xmin, ymin, xmax, ymax = self.boxes.T
        odd = {
            f"says that {self.image.name} is {width:g} x {height:g}, but it is {size[1]} x "
            f"{size[0]}: its boxes may be of another image, or of one that is not upright": (
                (height, width) != size
            ),
            "a bounding box exceeds the image": (
                min(xmin.min(initial=0), ymin.min(initial=0)) < 0
                or max(xmin.max(initial=0), xmax.max(initial=0)) > width
                or max(ymin.max(initial=0), ymax.max(initial=0)) > height
            ),
            "a bounding box ends before it begins": (xmin > xmax).any() or (ymin > ymax).any(),
            f"no size: that of {self.image.name} counts": (self.size is None and bool(self.source)),
        }
        for text in (text for text, holds in odd.items() if holds):
            log.warning("%s: %s", self.source or self.image, text)
        shares: np.ndarray = self.boxes / [width, height, width, height]
        return shares.clip(0, 1)


def annotated_record(
    image: np.ndarray | bytes,
    labels: np.ndarray,
    boxes: np.ndarray,
    difficult: np.ndarray | None = None,
    shape: Shape | None = None,
    label: int = -1,
) -> bytes:
    """A serialized AnnotatedDatum of an image, uint8 (channels, height, width), or a file's bytes.

    labels: (B) integers from 1; boxes: (B, 4) in fractions of the image. shape: of an encoded
    image. label: of the image as a whole, if it has one.
    """
    datum = caffe_pb2.AnnotatedDatum()
    if label == -1:
        datum.type = caffe_pb2.AnnotatedDatum.BBOX
    encoded = isinstance(image, bytes)
    extents = shape if isinstance(image, bytes) else image.shape
    assert extents is not None
    datum.datum.channels, datum.datum.height, datum.datum.width = extents
    datum.datum.encoded = encoded
    datum.datum.data = image if isinstance(image, bytes) else image.tobytes()
    datum.datum.label = label
    flags = np.zeros(len(labels), bool) if difficult is None else difficult
    groups: dict[int, Any] = {}
    for label, (xmin, ymin, xmax, ymax), flag in zip(labels, boxes, flags, strict=True):
        group = groups.get(int(label))
        if group is None:
            group = groups[int(label)] = datum.annotation_group.add(group_label=int(label))
        box = caffe_pb2.NormalizedBBox(
            xmin=xmin, ymin=ymin, xmax=xmax, ymax=ymax, difficult=bool(flag)
        )
        group.annotation.add(instance_id=len(group.annotation), bbox=box)
    return datum.SerializeToString()


class Picture(NamedTuple):
    """What a record stores of an image: pixels or a file's bytes, of a shape (channels, height,
    width); and the (height, width) of the image itself."""

    data: np.ndarray | bytes
    shape: Shape
    size: tuple[int, int]


def whole_file(path: Path) -> Picture:
    """The image file, unchanged."""
    content = read_content(path)
    height, width, channels = decode_content(path, content).shape
    return Picture(content, (channels, height, width), (height, width))


def make_database(
    entries: Sequence[Entry],
    output: str | os.PathLike[str],
    *,
    picture: Callable[[Path], Picture] = whole_file,
    check_size: bool = False,
    threads: int = 1,
    bad: BadRecords | None = None,
    advance: Callable[[], object] = lambda: None,
) -> int:
    """Write an LMDB of AnnotatedDatum, and return their number.

    picture: what is stored of an image. check_size: all must have the first one's shape. bad: what
    to do about images that cannot be read. advance is called after each. Raises UserError, also
    if there is no image.
    """
    if not entries:
        raise UserError(f"{output}: no images for it")

    def load(numbered: tuple[int, Entry]) -> tuple[bytes, Shape]:
        entry = numbered[1]
        data, shape, size = picture(entry.image)
        objects = entry.labels, entry.shares(size), entry.difficult
        return annotated_record(data, *objects, shape, entry.label), shape

    def records() -> Iterator[tuple[bytes, bytes]]:
        first: Shape | None = None
        loaded = map_usable(load, list(enumerate(entries)), threads, bad or BadRecords(), advance)
        for (index, entry), (value, shape) in loaded:
            first = first or shape
            if check_size and shape != first:
                name, remedy = f"image {entry.image}", "resize them, or leave out check_size"
                raise unlike_first(name, shape, first, remedy)
            yield record_key(index, entry.name or entry.image.name), value

    return write_database(output, records())


def read_annotations(root: str, path: str, kind: str, labels: Mapping[str, int]) -> list[Entry]:
    """The images of a list of lines IMAGE ANNOTATION, as SSD's convert_annoset takes it.

    root: put before both names. kind: of the annotations: xml (VOC's), json (COCO's, a file each)
    or txt (lines LABEL XMIN YMIN XMAX YMAX, in pixels). labels: the numbers of the names that
    xml and json have. An image without a file of annotations has no objects. UserError.
    """

    def parse(line: str) -> list[str]:
        image, annotation = line.split()
        return [image, annotation]

    meaning = "the names of an image and of its annotation, without blanks in them"
    pairs = read_entries(path, "annotated images", "IMAGE ANNOTATION", meaning, parse)
    return [
        _annotated(Path(root + image), Path(root + annotation), kind, labels)._replace(name=image)
        for image, annotation in pairs
    ]


def read_labels(root: str, path: str) -> list[Entry]:
    """The images of a list of lines IMAGE LABEL. root: put before the names. UserError."""
    return [
        _entry(Path(root + name), [], "", None)._replace(name=name, label=label)
        for name, label in read_list(path)
    ]


def _annotated(image: Path, file: Path, kind: str, labels: Mapping[str, int]) -> Entry:
    """An image with the objects that a file tells. UserError."""
    try:
        content = read_file(file) if file.exists() else b""
        if not content.strip():
            return _entry(image, [], "", None)
        if kind == "xml":
            return _voc_entry(ElementTree.fromstring(content), image, labels, file)
        if kind == "json":
            return _json_entry(from_json(content), image, labels, file)
        rows = [line.split() for line in lines_of(content) if line.strip()]
        if wrong := next((row for row in rows if len(row) != 5), None):
            raise ValueError(f"{' '.join(wrong)!r} is not LABEL XMIN YMIN XMAX YMAX")
        objects = [(as_int(row[0]), [*map(as_float, row[1:])], False) for row in rows]
        return _entry(image, objects, "", None)
    except (OSError, ElementTree.ParseError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"cannot read {file}: {error}") from error
    except KeyError as error:
        raise UserError(f"{file}: {error.args[0]} is missing, or not in the label map") from error


def _json_entry(content: Any, image: Path, labels: Mapping[str, int], file: Path) -> Entry:
    """The objects of an image in a file of its own, as SSD's scripts split COCO's."""
    objects = []
    for item in content["annotation"]:
        x, y, width, height = map(as_float, item["bbox"])
        label = labels[str(item["category_id"])]
        objects.append((label, [x, y, x + width, y + height], bool(item.get("iscrowd"))))
    told = content.get("image", {})
    size = (as_float(told["height"]), as_float(told["width"])) if "height" in told else None
    return _entry(image, objects, str(file), size)


def read_voc(folder: Path, split: str, labels: dict[str, int]) -> list[Entry]:
    """The images of a split ("trainval") of a folder of PASCAL VOC (VOCdevkit/VOC2007, say).

    labels: the numbers of the names. Raises UserError that names a file that is missing or damaged.
    """
    names = folder / "ImageSets" / "Main" / f"{split}.txt"
    try:
        lines = lines_of(read_file(names))
    except OSError as error:
        raise UserError(f"cannot read {names}: {reason(error)}; is {folder} of VOC?") from error
    entries = []
    for name in (line.split()[0] for line in lines if line.strip()):
        file = folder / "Annotations" / f"{name}.xml"
        try:
            tree = ElementTree.fromstring(read_file(file))
            entries.append(_voc_entry(tree, folder / "JPEGImages" / f"{name}.jpg", labels, file))
        except (OSError, ElementTree.ParseError, ValueError) as error:
            raise UserError(f"cannot read {file}: {error}") from error
        except KeyError as error:
            raise UserError(
                f"{file}: {error.args[0]} is not in the label map: give another with --labels"
            ) from error
    return entries


def _voc_entry(
    tree: ElementTree.Element, image: Path, labels: Mapping[str, int], file: Path
) -> Entry:
    size = None
    if tree.find("size") is not None:
        size = as_float(_text(tree, "size/height")), as_float(_text(tree, "size/width"))
    objects = []
    for node in tree.iter("object"):
        box = [as_float(_text(node, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")]
        # As SSD reads it: "Unspecified" is not difficult.
        difficult = (node.findtext("difficult") or "").strip() == "1"
        objects.append((labels[_text(node, "name")], box, difficult))
    return _entry(image, objects, str(file), size)


def _text(element: ElementTree.Element, path: str) -> str:
    text = element.findtext(path)
    if not text:
        raise ValueError(f"it has no {path}")
    return text.strip()


def _entry(
    image: Path,
    objects: Iterable[tuple[int, list[float], bool]],
    source: str,
    size: tuple[float, float] | None,
) -> Entry:
    labels, boxes, difficult = zip(*objects, strict=True) if objects else ((), (), ())
    height, width = size or (1, 1)
    if not (width > 0 and height > 0 and np.isfinite(boxes).all()):
        raise ValueError(f"{image.name} is {width:g}x{height:g}, with boxes {listed(boxes)}")
    pixels = np.array(boxes, np.float64).reshape(-1, 4)
    return Entry(image, np.array(labels, int), pixels, np.array(difficult, bool), source, size)


def read_coco(images: Path, annotations: Path) -> tuple[list[Entry], list[tuple[str, int]]]:
    """The images of a file of COCO (instances_val2017.json); and the names and numbers of labels.

    Categories are numbered from 1 in the order of their ids; a crowd is difficult.
    """
    try:
        content = from_json(read_bytes(annotations))
        names = sorted(
            (as_int(kind["id"]), as_name(str(kind["name"]))) for kind in content["categories"]
        )
        numbers = {key: place for place, (key, _) in enumerate(names, 1)}
        objects = defaultdict(list)
        for annotation in content["annotations"]:
            x, y, width, height = map(as_float, annotation["bbox"])
            item = (numbers[annotation["category_id"]], [x, y, x + width, y + height],
                     annotation.get("iscrowd") == 1)  # fmt: skip
            objects[annotation["image_id"]].append(item)
        entries = [
            _entry(
                images / as_name(item["file_name"]),
                objects[item["id"]],
                f"{annotations}, image {item['id']}",
                (as_float(item["height"]), as_float(item["width"])),
            )
            for item in content["images"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{annotations} is not a COCO file of objects: {error}") from error
    return entries, [(label, place) for place, (_, label) in enumerate(names, 1)]


def read_label_map(file: str | os.PathLike[str]) -> list[tuple[str, int]]:
    """Names and numbers of a label map (labelmap_voc.prototxt), without the background, 0."""
    label_map = read_text(Path(file), caffe_pb2.LabelMap)
    return [(item.name, item.label) for item in label_map.item if item.label]


def write_label_map(file: str | os.PathLike[str], labels: Iterable[tuple[str, int]]) -> None:
    """Write a label map as SSD has it, with the background first."""
    label_map = caffe_pb2.LabelMap()
    for name, number in [("none_of_the_above", 0), *labels]:
        shown = "background" if number == 0 else name
        label_map.item.add(name=name, label=number, display_name=shown)
    write_text(Path(file), label_map)
