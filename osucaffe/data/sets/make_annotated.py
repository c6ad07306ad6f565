"""The conversion of PASCAL VOC and COCO to databases of annotated images, as SSD reads them."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from ...errors import UserError, listed, reason
from ...files import read_bytes, read_file
from ...parsing import as_float, as_int, as_name, from_json, lines_of
from ...proto import caffe_pb2, read_text, write_text
from ..ahead.parallel_map import BadRecords, map_usable
from ..databases.database import record_key, write_database
from ..pictures.image import decode_content, read_content

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip


log = logging.getLogger("osucaffe")


class Entry(NamedTuple):
    """An image file and its objects: labels, boxes in pixels, difficult; the file that says so, and
    the (height, width) of the image according to it (None: it does not say)."""

    image: Path
    labels: np.ndarray
    boxes: np.ndarray
    difficult: np.ndarray
    source: str
    size: tuple[float, float] | None

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
            f"no size: that of {self.image.name} counts": self.size is None,
        }
        for text in (text for text, holds in odd.items() if holds):
            log.warning("%s: %s", self.source, text)
        shares: np.ndarray = self.boxes / [width, height, width, height]
        return shares.clip(0, 1)


def annotated_record(
    image: np.ndarray | bytes,
    labels: np.ndarray,
    boxes: np.ndarray,
    difficult: np.ndarray | None = None,
    shape: tuple[int, int, int] | None = None,
) -> bytes:
    """A serialized AnnotatedDatum of an image, uint8 (channels, height, width), or a file's bytes.

    labels: (B) integers from 1; boxes: (B, 4) in fractions of the image. shape: of an encoded
    image.
    """
    datum = caffe_pb2.AnnotatedDatum(type=caffe_pb2.AnnotatedDatum.BBOX)
    encoded = isinstance(image, bytes)
    extents = shape if isinstance(image, bytes) else image.shape
    assert extents is not None
    datum.datum.channels, datum.datum.height, datum.datum.width = extents
    datum.datum.encoded = encoded
    datum.datum.data = image if isinstance(image, bytes) else image.tobytes()
    datum.datum.label = -1
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


def make_database(
    entries: Sequence[Entry],
    output: str | os.PathLike[str],
    *,
    threads: int = 1,
    advance: Callable[[], object] = lambda: None,
) -> int:
    """Write an LMDB of AnnotatedDatum, with the image files unchanged; return their number.

    advance is called after each. Raises UserError if one cannot be read, or there is none.
    """
    if not entries:
        raise UserError(f"{output}: there is no image for it")

    def load(numbered: tuple[int, Entry]) -> bytes:
        entry = numbered[1]
        content = read_content(entry.image)
        height, width, channels = decode_content(entry.image, content).shape
        boxes = entry.shares((height, width))
        shape = (channels, height, width)
        return annotated_record(content, entry.labels, boxes, entry.difficult, shape)

    records = map_usable(load, list(enumerate(entries)), threads, BadRecords(), advance)
    keyed = ((record_key(index, entry.image.name), value) for (index, entry), value in records)
    return write_database(output, keyed)


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
                f"{file}: {error.args[0]} is no name of the label map: give another with --labels"
            ) from error
    return entries


def _voc_entry(tree: ElementTree.Element, image: Path, labels: dict[str, int], file: Path) -> Entry:
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
        raise UserError(f"{annotations} is no file of COCO's objects: {error}") from error
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
