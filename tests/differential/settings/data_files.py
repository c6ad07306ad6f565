"""Owns the files that random data layers read, and what may come of each record, by NumPy alone.

The files that its comments name are C++ Caffe's, from which the definitions are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cv2
import h5py
import lmdb
import numpy as np

from osucaffe.net import Net
from osucaffe.proto import BlobProto, Datum

from ..search import Case
from .data_cases import DEFAULTS

PREFIX = {
    "Data": "data",
    "HDF5Data": "hdf5_data",
    "ImageData": "image_data",
    "WindowData": "window_data",
    "MemoryData": "memory_data",
}


class Record(NamedTuple):
    """What may come of a record, (outcomes, ...): float64; and its label."""

    outcomes: np.ndarray
    label: int


class Files(NamedTuple):
    """What was written: its records, the layer's prototxt, and for HDF5 the records of each file.

    feed: gives a net what no file has.
    """

    records: list[Record]
    text: str
    parts: list[int]
    feed: Callable[[Net], None] = lambda net: None


def write(case: Case, folder: Path) -> Files:
    """Write the case's files."""
    full = DEFAULTS | case
    random = np.random.default_rng(full["seed"])
    text, maker = "", globals()[f"write_{PREFIX[full['layer']]}"]
    if full["layer"] != "HDF5Data":
        mean = ""
        channels = depth(full)
        if full["mean"] == "file":
            extents = full["resized"] if full["resized"][0] else full["extents"]
            if full["layer"] == "WindowData":
                extents = (full["crop"] + 3,) * 2
            write_mean(folder, random.uniform(0, 255, (channels, *extents)))
            mean = f'mean_file: "{folder}/mean" '
        elif full["mean"]:
            values = random.integers(0, 255, 1 if full["mean"] == "one" else channels)
            mean = "".join(f"mean_value: {value} " for value in values)
        force = f"force_{full['force']}: true " if full["force"] else ""
        text = (
            f"transform_param {{ {mean}{force}crop_size: {full['crop']} "
            f"mirror: {str(full['mirror']).lower()} scale: {full['scale']} }}"
        )
    files: Files = maker(full, folder, random, text)
    tops = 'top: "data" top: "label"' if full["labelled"] else 'top: "data"'
    return files._replace(
        text=f'layer {{ name: "in" type: "{full["layer"]}" {tops}\n  {files.text}\n  {text} }}\n'
    )


def depth(full: Case) -> int:
    """The channels of what comes."""
    if full["force"]:
        return 3 if full["force"] == "color" else 1
    if full["layer"] == "ImageData":
        return 3 if full["colour"] else 1
    return full["channels"]


def write_mean(folder: Path, mean: np.ndarray) -> None:
    channels, height, width = mean.shape
    blob = BlobProto(num=1, channels=channels, height=height, width=width, data=mean.ravel())
    (folder / "mean").write_bytes(blob.SerializeToString())


def read_mean(full: Case, folder: Path, text: str) -> np.ndarray:
    """The mean that a transform's text names: one that can be subtracted from any image."""
    if full["mean"] == "file":
        blob = BlobProto.FromString((folder / "mean").read_bytes())
        return np.array(blob.data).reshape(blob.channels, blob.height, blob.width)
    words = text.split()
    values = [float(words[i + 1]) for i, word in enumerate(words) if word == "mean_value:"]
    return np.array(values or [0.0])[:, None, None]


def transformed(full: Case, image: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """data_transformer.cpp: all that may come of an image (channels, height, width)."""
    values = (image.astype(np.float64) - mean) * np.float64(np.float32(full["scale"]))
    crop, (height, width) = full["crop"], image.shape[1:]
    places = [(0, 0)]
    if crop and full["phase"] == "TRAIN":
        places = list(itertools.product(range(height - crop + 1), range(width - crop + 1)))
    elif crop:
        places = [((height - crop) // 2, (width - crop) // 2)]
    size = (crop, crop) if crop else (height, width)
    found = [values[:, y : y + size[0], x : x + size[1]] for y, x in places]
    if full["mirror"]:
        found += [each[:, :, ::-1] for each in found]
    return np.stack(found)


def draw_image(full: Case, random: np.random.Generator, first: bool) -> np.ndarray:
    """Random pixels (height, width, channels); images but the first may have any size."""
    height, width = full["extents"]
    if full["varied"] and not first:
        height, width = height + random.integers(0, 4), width + random.integers(0, 4)
    shape = (height, width, full["channels"])
    if full["coded"] == "jpg":  # smooth, as no two decoders must agree on more
        image = cv2.resize(random.integers(0, 256, (3, 3, 3), np.uint8), (width, height))
        return image[..., : full["channels"]]
    return random.integers(0, 256, shape, np.uint8)


def coded(kind: str, image: np.ndarray) -> bytes:
    """The content of a file of this kind."""
    return cv2.imencode(f".{kind}", image)[1].tobytes()


def decoded(content: bytes, how: int) -> np.ndarray:
    """Pixels (height, width, channels)."""
    image = cv2.imdecode(np.frombuffer(content, np.uint8), how)
    return image.reshape(*image.shape[:2], -1)


def write_data(full: Case, folder: Path, random: np.random.Generator, text: str) -> Files:
    records, mean = [], read_mean(full, folder, text)
    how = {"": cv2.IMREAD_UNCHANGED, "color": cv2.IMREAD_COLOR, "gray": cv2.IMREAD_GRAYSCALE}
    with (
        lmdb.open(str(folder / "lmdb"), map_size=1 << 24) as database,
        database.begin(write=True) as transaction,
    ):
        for number in range(full["records"]):
            image = draw_image(full, random, not number)
            height, width, channels = image.shape
            datum = Datum(channels=channels, height=height, width=width, label=number)
            kind = full["coded"]
            if full["mixed"] and number % 2 and not full["force"]:
                kind = "" if kind else "png"
            if kind in ("jpg", "png"):
                datum.encoded, datum.data = True, coded(kind, image)
                image = decoded(datum.data, how[full["force"]])
            elif kind:
                values = random.standard_normal(image.shape).astype(np.float32)
                image = values
                datum.float_data.extend(values.transpose(2, 0, 1).ravel().tolist())
            else:
                datum.data = image.transpose(2, 0, 1).tobytes()
            transaction.put(b"%08d" % number, datum.SerializeToString())
            records.append(Record(transformed(full, image.transpose(2, 0, 1), mean), number))
    return Files(
        records,
        f'data_param {{ source: "{folder}/lmdb" backend: LMDB batch_size: {full["batch"]} '
        f"rand_skip: {full['rand_skip']} prefetch: {full['prefetch']} }}",
        [full["records"]],
    )


def write_hdf5_data(full: Case, folder: Path, random: np.random.Generator, text: str) -> Files:
    records, names, parts, shape = list[Record](), [], [], (full["channels"], *full["extents"])
    cuts = np.sort(random.integers(0, full["records"] + 1, full["files"] - 1)).tolist()
    for first, last in itertools.pairwise([0, *cuts, full["records"]]):
        data = random.uniform(0, 250, (last - first, *shape)).astype(full["dtype"])
        labels = np.arange(first, last)
        names.append(f"{folder}/{len(names)}.h5")
        with h5py.File(names[-1], "w") as file:
            file["data"], file["label"] = data, labels
        parts.append(last - first)
        records += [
            Record(row[None].astype(np.float64), label)
            for row, label in zip(data, labels.tolist(), strict=True)
        ]
    (folder / "list").write_text("\n".join(names) + "\n")
    return Files(
        records,
        f'hdf5_data_param {{ source: "{folder}/list" batch_size: {full["batch"]} '
        f"shuffle: {str(full['shuffle']).lower()} }}",
        parts,
    )


def write_image_data(full: Case, folder: Path, random: np.random.Generator, text: str) -> Files:
    records, lines, mean = [], [], read_mean(full, folder, text)
    height, width = full["resized"]
    for number in range(full["records"]):
        content = coded(full["coded"], draw_image(full, random, not number))
        name = f"an image {number}.{full['coded']}"
        (folder / name).write_bytes(content)
        lines.append(f"{'' if full['root'] else f'{folder}/'}{name} {number}\n")
        image = decoded(content, cv2.IMREAD_COLOR if full["colour"] else cv2.IMREAD_GRAYSCALE)
        if height:
            image = cv2.resize(image, (width, height)).reshape(height, width, -1)
        records.append(Record(transformed(full, image.transpose(2, 0, 1), mean), number))
    (folder / "list").write_text("".join(lines))
    root = f'root_folder: "{folder}/" ' if full["root"] else ""
    return Files(
        records,
        f'image_data_param {{ source: "{folder}/list" batch_size: {full["batch"]} {root}'
        f"new_height: {height} new_width: {width} rand_skip: {full['rand_skip']} "
        f"is_color: {str(full['colour']).lower()} shuffle: {str(full['shuffle']).lower()} }}",
        [full["records"]],
    )


def write_memory_data(full: Case, folder: Path, random: np.random.Generator, text: str) -> Files:
    images = [draw_image(full, random, True).transpose(2, 0, 1) for _ in range(full["records"])]
    labels = np.arange(len(images))
    mean = read_mean(full, folder, text)
    records = [Record(transformed(full, image, mean), n) for n, image in enumerate(images)]
    if not full["added"]:
        whole = full | {"crop": 0, "mirror": False, "scale": 1.0}
        records = [
            Record(transformed(whole, image, np.zeros(1)), n) for n, image in enumerate(images)
        ]
    channels, height, width = records[0].outcomes.shape[1:]

    def feed(net: Net) -> None:
        layer, stacked = net.layers[0], np.stack(images)
        if full["added"]:
            layer.add_images(stacked, labels)
        else:
            layer.set_arrays(stacked.astype(np.float32), labels.astype(np.float32))

    return Files(
        records,
        f"memory_data_param {{ batch_size: {full['batch']} channels: {channels} "
        f"height: {height} width: {width} }}",
        [full["records"]],
        feed,
    )


def write_window_data(full: Case, folder: Path, random: np.random.Generator, text: str) -> Files:
    """The records are the foreground's windows, then the background's: of these the label is 0."""
    mean, lines = read_mean(full, folder, text), []
    kinds: list[list[Record]] = [[], []]
    high, low = map(np.float32, full["thresholds"])
    for number in range(full["records"]):
        content = coded(full["coded"], draw_image(full, random, True))
        image = decoded(content, cv2.IMREAD_COLOR if full["channels"] > 1 else 0)
        name = f"{number}.{full['coded']}"
        (folder / name).write_bytes(content)
        height, width, channels = image.shape
        count = 2 if number else 4
        lines += [f"# {number}", ("" if full["root"] else f"{folder}/") + name]
        lines += [str(each) for each in (channels, height, width, count)]
        for place in range(count):
            # The first image has windows of both kinds.
            overlap = random.integers(0, 11) / 10 if number else (0.0, high, low - 0.1, 1.0)[place]
            x1, y1 = random.integers(0, width - 3), random.integers(0, height - 3)
            x2, y2 = random.integers(x1 + 2, width), random.integers(y1 + 2, height)
            label = random.integers(1, 9)
            lines.append(f"{label} {overlap:.1f} {x1} {y1} {x2} {y2}")
            overlap = np.float32(f"{overlap:.1f}")
            box = int(x1), int(y1), int(x2), int(y2)
            outcomes = np.stack(
                [cut(full, image, box, mean, flip) for flip in (False, True)[: 1 + full["mirror"]]]
            )
            if overlap >= high:
                kinds[0].append(Record(outcomes, int(label)))
            elif overlap < low:
                kinds[1].append(Record(outcomes, 0))
    (folder / "list").write_text("\n".join(lines))
    root = f'root_folder: "{folder}/" ' if full["root"] else ""
    return Files(
        [*kinds[0], *kinds[1]],
        f'window_data_param {{ source: "{folder}/list" batch_size: {full["batch"]} {root}'
        f"fg_threshold: {full['thresholds'][0]} bg_threshold: {full['thresholds'][1]} "
        f"fg_fraction: {full['fraction']} context_pad: {full['context']} "
        f'crop_mode: "{"square" if full["square"] else "warp"}" '
        f"cache_images: {str(full['cache_images']).lower()} }}",
        [len(kind) for kind in kinds],
    )


def cut(
    full: Case, image: np.ndarray, box: tuple[int, int, int, int], mean: np.ndarray, flip: bool
) -> np.ndarray:
    """window_data_layer.cpp: a window warped to the crop."""
    x1, y1, x2, y2 = box
    crop, context = full["crop"], full["context"]
    size, pad_x, pad_y = [crop, crop], 0, 0
    if context or full["square"]:
        scale = crop / (crop - 2 * context)
        half_y, half_x = (y2 - y1 + 1) / 2, (x2 - x1 + 1) / 2
        middle_x, middle_y = x1 + half_x, y1 + half_y
        if full["square"]:
            half_x = half_y = max(half_x, half_y)
        x1, x2 = nearest(middle_x - half_x * scale), nearest(middle_x + half_x * scale)
        y1, y2 = nearest(middle_y - half_y * scale), nearest(middle_y + half_y * scale)
        scale_x, scale_y = crop / (x2 - x1 + 1), crop / (y2 - y1 + 1)
        left, top = max(0, -x1), max(0, -y1)
        right, bottom = max(0, x2 - image.shape[1] + 1), max(0, y2 - image.shape[0] + 1)
        x1, x2, y1, y2 = x1 + left, x2 - right, y1 + top, y2 - bottom
        size = [nearest((x2 - x1 + 1) * scale_x), nearest((y2 - y1 + 1) * scale_y)]
        pad_x, pad_y = nearest((right if flip else left) * scale_x), nearest(top * scale_y)
        size = [min(size[0], crop - pad_x), min(size[1], crop - pad_y)]
    part = cv2.resize(np.ascontiguousarray(image[y1 : y2 + 1, x1 : x2 + 1]), size)
    part = part.reshape(size[1], size[0], -1)[:, :: -1 if flip else 1].transpose(2, 0, 1)
    if full["mean"] == "file":
        off = (mean.shape[2] - crop) // 2
        mean = mean[:, off + pad_y :, off + pad_x :][:, : size[1], : size[0]]
    out = np.zeros((image.shape[2], crop, crop))
    out[:, pad_y : pad_y + size[1], pad_x : pad_x + size[0]] = (part - mean) * full["scale"]
    return out


def nearest(value: float) -> int:
    """C's round."""
    return int(np.floor(abs(value) + 0.5)) * (1 if value >= 0 else -1)
