"""Files of detections, as save_output_param of SSD's DetectionOutput layers describes them."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ...files import read_lines, write_bytes
from ...layers.base import Layer
from ...net import Net
from ...parsing import as_int
from .make_annotated import read_label_map


class Results:
    """The detections of one layer, gathered batch by batch, and their output files.

    folder: replaces output_directory. UserError if a file of names is missing.
    """

    def __init__(self, layer: Layer, blob: str, items: int, folder: str) -> None:
        self._param: Any = layer.param.detection_output_param.save_output_param
        self._blob, self._items, self._folder = blob, items, Path(folder)
        for field in ("name_size_file", "label_map_file"):
            if not getattr(self._param, field):
                layer.fail(f"detection_output_param.save_output_param.{field}", "is missing")
        self._images = _read_sizes(self._param.name_size_file)
        self._labels = {number: name for name, number in read_label_map(self._param.label_map_file)}
        self._rows: list[tuple[str, int, float, list[float]]] = []
        self._seen = 0

    def read(self, net: Net) -> np.ndarray:
        """The detections of the last forward pass, for `add`."""
        rows: np.ndarray = net.read(self._blob)[0, 0]
        return rows

    def add(self, rows: np.ndarray) -> None:
        """Add the detections of the next batch."""
        for image, label, score, *box in rows.tolist():
            number = self._seen + int(image)
            if label < 0 or number >= len(self._images):
                continue
            name, height, width = self._images[number]
            sides = np.array([width, height, width, height])
            corners = (np.clip(box, 0, 1) * sides).tolist()
            self._rows.append((name, int(label), score, corners))
        self._seen += self._items

    def write(self) -> list[Path]:
        """Write the files of the output_format (VOC or COCO), and return their names."""
        self._folder.mkdir(parents=True, exist_ok=True)
        kind, prefix = self._param.output_format or "VOC", self._param.output_name_prefix
        if kind == "COCO":
            entries = [
                {
                    "image_id": _number(name),
                    "category_id": _number(self._labels.get(label, label)),
                    "bbox": [x, y, right - x, bottom - y], "score": score,
                }
                for name, label, score, (x, y, right, bottom) in self._rows
            ]  # fmt: skip
            return [self._write(f"{prefix}.json", json.dumps(entries))]
        if kind != "VOC":
            raise UserError(f'output_format "{kind}": give VOC or COCO')
        files: dict[int, list[str]] = defaultdict(list)
        for name, label, score, box in self._rows:
            sides = " ".join(str(int(side)) for side in box)
            files[label].append(f"{name} {score:g} {sides}\n")
        return [
            self._write(f"{prefix}{name}.txt", "".join(files[label]))
            for label, name in sorted(self._labels.items())
        ]

    def _write(self, name: str, text: str) -> Path:
        file = self._folder / name
        write_bytes(file, text.encode(errors="surrogateescape"))
        return file


def gather(net: Net, folder: str) -> list[Results]:
    """The objects that gather the detections of a net's DetectionOutput layers."""
    made = [
        Results(node.layer, node.top[0].name, node.bottom[1].shape[0], folder)
        for node in net.nodes if node.layer.type == "DetectionOutput"
    ]  # fmt: skip
    if not made:
        raise UserError("--results: the net has no DetectionOutput layer")
    return made


def _read_sizes(file: str) -> list[tuple[str, int, int]]:
    """Name, height and width of each image, in the order of the records."""
    try:
        rows = [line.split() for line in read_lines(file, "the sizes of images") if line.strip()]
        return [(name, as_int(height), as_int(width)) for name, height, width in rows]
    except ValueError as error:
        raise UserError(f"{file}: each line must be NAME HEIGHT WIDTH") from error


def _number(name: str | int) -> str | int:
    """COCO's names of images and categories are numbers."""
    try:
        return as_int(name, 0, 1 << 63)
    except ValueError:
        return name
