"""The random settings of data layers, the files that they read, and what may come of each
record, by NumPy alone.

The files that its comments name are C++ Caffe's, from which the definitions are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import h5py
import lmdb
import numpy as np

from osucaffe.net import Net
from osucaffe.proto import BlobProto, Datum

from ..search import Case

DEFAULTS: Case = {
    "layer": "Data",
    "seed": 1,
    "records": 5,
    "batch": 3,
    "batches": 6,
    "phase": "TRAIN",
    "channels": 3,
    "extents": (6, 7),
    "varied": False,
    "labelled": True,
    "coded": "",
    "mixed": False,
    "force": "",
    "colour": True,
    "resized": (0, 0),
    "root": False,
    "crop": 0,
    "mirror": False,
    "mean": "",
    "scale": 1.0,
    "shuffle": False,
    "block": 0,
    "rand_skip": 0,
    "prefetch": 4,
    "files": 1,
    "dtype": "float32",
    "added": False,
    "fraction": 0.25,
    "thresholds": (0.5, 0.5),
    "context": 0,
    "square": False,
    "cache_images": False,
    "readers": 1,
    "cache": "none",
    "raw": False,
    "ranks": 2,
    "stop": 2,
    "before": 0,
}


def draw(random: np.random.Generator) -> Case:
    """A case that no layer may refuse."""

    def one(*values: Any) -> Any:
        return values[random.integers(len(values))]

    def number(first: int, last: int) -> int:
        return int(random.integers(first, last + 1))

    large = one(True, False, False)
    extents = (number(75, 90), number(75, 90)) if large else (number(5, 20), number(5, 20))
    layer = one("Data", "Data", "HDF5Data", "ImageData", "WindowData", "MemoryData")
    case: Case = {
        "layer": layer,
        "seed": number(0, 999),
        "records": number(1, 13),
        "batch": number(1, 7),
        "phase": one("TRAIN", "TRAIN", "TEST"),
        "channels": one(1, 3),
        "extents": extents,
        "readers": number(1, 3),
        "cache": one("none", "host", "device", "auto"),
        "raw": one(True, False),
        "ranks": one(2, 3),
    }
    case["batches"] = max(4, 3 * case["records"] // case["batch"] + 1)
    case["stop"], case["before"] = number(1, case["batches"] - 1), number(0, 3)
    if layer == "HDF5Data":
        case |= {"shuffle": one(True, False), "files": number(1, 4)}
        dtype = one("float32", "float64", "uint8", "int32")
        return case | {"dtype": dtype, "block": one(0, 0, 1, 2, 3)}
    case |= {
        "crop": one(0, min(extents) - number(0, 3) if large else number(3, 5)),
        "mirror": one(True, False),
        "mean": one("", "file", "one", "each"),
        "scale": one(1.0, 0.00390625, 0.3),
    }
    if layer == "MemoryData":
        return case | {"added": one(True, False), "records": case["batch"] * number(1, 4)}
    if layer == "WindowData":
        low, high = sorted(number(0, 10) / 10 for _ in range(2))
        return case | {
            "crop": number(4, 9),
            "batch": number(1, 10),
            "fraction": number(0, 10) / 10,
            "thresholds": (high, low),
            "context": one(0, 0, 1),
            "square": one(True, False),
            "cache_images": one(True, False),
            "coded": one("jpg", "png"),
            "root": one(True, False),
        }
    case |= {
        "rand_skip": one(0, 0, number(1, 20)),
        "varied": bool(case["crop"]) and case["mean"] != "file" and one(True, False),
    }
    if layer == "ImageData":
        size = (0, 0) if large else one((0, 0), (number(5, 16), number(5, 16)))
        return case | {
            "shuffle": one(True, False),
            "resized": size,
            "varied": case["varied"] or (size != (0, 0) and one(True, False)),
            "colour": one(True, False),
            "root": one(True, False),
            "coded": one("jpg", "png"),
            "block": one(0, 0, 1, 2, 3),
        }
    coded = one("", "", "jpg", "png", "float")
    return case | {
        "coded": coded,
        "force": one("", "color", "gray") if coded in ("jpg", "png") else "",
        "mixed": coded != "float" and one(True, False, False),
        "labelled": one(True, True, False),
        "prefetch": one(4, 1, 2),
        "block": one(0, 0, 1, 2, 3),
    }


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
    random = np.random.default_rng(case["seed"])
    text, maker = "", globals()[f"write_{PREFIX[case['layer']]}"]
    if case["layer"] != "HDF5Data":
        mean = ""
        channels = depth(case)
        if case["mean"] == "file":
            extents = case["resized"] if case["resized"][0] else case["extents"]
            if case["layer"] == "WindowData":
                extents = (case["crop"] + 3,) * 2
            write_mean(folder, random.uniform(0, 255, (channels, *extents)))
            mean = f'mean_file: "{folder}/mean" '
        elif case["mean"]:
            values = random.integers(0, 255, 1 if case["mean"] == "one" else channels)
            mean = "".join(f"mean_value: {value} " for value in values)
        force = f"force_{case['force']}: true " if case["force"] else ""
        text = (
            f"transform_param {{ {mean}{force}crop_size: {case['crop']} "
            f"mirror: {str(case['mirror']).lower()} scale: {case['scale']} }}"
        )
    files: Files = maker(case, folder, random, text)
    tops = 'top: "data" top: "label"' if case["labelled"] else 'top: "data"'
    return files._replace(
        text=f'layer {{ name: "in" type: "{case["layer"]}" {tops}\n  {files.text}\n  {text} }}\n'
    )


def depth(case: Case) -> int:
    """The channels of what comes."""
    if case["force"]:
        return 3 if case["force"] == "color" else 1
    if case["layer"] == "ImageData":
        return 3 if case["colour"] else 1
    return case["channels"]


def write_mean(folder: Path, mean: np.ndarray) -> None:
    channels, height, width = mean.shape
    blob = BlobProto(num=1, channels=channels, height=height, width=width, data=mean.ravel())
    (folder / "mean").write_bytes(blob.SerializeToString())


def read_mean(case: Case, folder: Path, text: str) -> np.ndarray:
    """The mean that a transform's text names: one that can be subtracted from any image."""
    if case["mean"] == "file":
        blob = BlobProto.FromString((folder / "mean").read_bytes())
        return np.array(blob.data).reshape(blob.channels, blob.height, blob.width)
    words = text.split()
    values = [float(words[i + 1]) for i, word in enumerate(words) if word == "mean_value:"]
    return np.array(values or [0.0])[:, None, None]


def transformed(case: Case, image: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """data_transformer.cpp: all that may come of an image (channels, height, width)."""
    values = (image.astype(np.float64) - mean) * np.float64(np.float32(case["scale"]))
    crop, (height, width) = case["crop"], image.shape[1:]
    places = [(0, 0)]
    if crop and case["phase"] == "TRAIN":
        places = list(itertools.product(range(height - crop + 1), range(width - crop + 1)))
    elif crop:
        places = [((height - crop) // 2, (width - crop) // 2)]
    size = (crop, crop) if crop else (height, width)
    found = [values[:, y : y + size[0], x : x + size[1]] for y, x in places]
    if case["mirror"]:
        found += [each[:, :, ::-1] for each in found]
    return np.stack(found)


def draw_image(case: Case, random: np.random.Generator, first: bool) -> np.ndarray:
    """Random pixels (height, width, channels); images but the first may have any size."""
    height, width = case["extents"]
    if case["varied"] and not first:
        height, width = height + random.integers(0, 4), width + random.integers(0, 4)
    shape = (height, width, case["channels"])
    if case["coded"] == "jpg":  # smooth, as no two decoders must agree on more
        image = cv2.resize(random.integers(0, 256, (3, 3, 3), np.uint8), (width, height))
        return image[..., : case["channels"]]
    return random.integers(0, 256, shape, np.uint8)


def coded(kind: str, image: np.ndarray) -> bytes:
    """The content of a file of this kind."""
    return cv2.imencode(f".{kind}", image)[1].tobytes()


def decoded(content: bytes, how: int) -> np.ndarray:
    """Pixels (height, width, channels)."""
    image = cv2.imdecode(np.frombuffer(content, np.uint8), how)
    return image.reshape(*image.shape[:2], -1)


def write_data(case: Case, folder: Path, random: np.random.Generator, text: str) -> Files:
    records, mean = [], read_mean(case, folder, text)
    how = {"": cv2.IMREAD_UNCHANGED, "color": cv2.IMREAD_COLOR, "gray": cv2.IMREAD_GRAYSCALE}
    with (
        lmdb.open(str(folder / "lmdb"), map_size=1 << 24) as database,
        database.begin(write=True) as transaction,
    ):
        for number in range(case["records"]):
            image = draw_image(case, random, not number)
            height, width, channels = image.shape
            datum = Datum(channels=channels, height=height, width=width, label=number)
            kind = case["coded"]
            if case["mixed"] and number % 2 and not case["force"]:
                kind = "" if kind else "png"
            if kind in ("jpg", "png"):
                datum.encoded, datum.data = True, coded(kind, image)
                image = decoded(datum.data, how[case["force"]])
            elif kind:
                values = random.standard_normal(image.shape).astype(np.float32)
                image = values
                datum.float_data.extend(values.transpose(2, 0, 1).ravel().tolist())
            else:
                datum.data = image.transpose(2, 0, 1).tobytes()
            transaction.put(b"%08d" % number, datum.SerializeToString())
            records.append(Record(transformed(case, image.transpose(2, 0, 1), mean), number))
    return Files(
        records,
        f'data_param {{ source: "{folder}/lmdb" backend: LMDB batch_size: {case["batch"]} '
        f"rand_skip: {case['rand_skip']} prefetch: {case['prefetch']} }}",
        [case["records"]],
    )


def write_hdf5_data(case: Case, folder: Path, random: np.random.Generator, text: str) -> Files:
    records, names, parts, shape = list[Record](), [], [], (case["channels"], *case["extents"])
    cuts = np.sort(random.integers(0, case["records"] + 1, case["files"] - 1)).tolist()
    for first, last in itertools.pairwise([0, *cuts, case["records"]]):
        data = random.uniform(0, 250, (last - first, *shape)).astype(case["dtype"])
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
        f'hdf5_data_param {{ source: "{folder}/list" batch_size: {case["batch"]} '
        f"shuffle: {str(case['shuffle']).lower()} }}",
        parts,
    )


def write_image_data(case: Case, folder: Path, random: np.random.Generator, text: str) -> Files:
    records, lines, mean = [], [], read_mean(case, folder, text)
    height, width = case["resized"]
    for number in range(case["records"]):
        content = coded(case["coded"], draw_image(case, random, not number))
        name = f"an image {number}.{case['coded']}"
        (folder / name).write_bytes(content)
        lines.append(f"{'' if case['root'] else f'{folder}/'}{name} {number}\n")
        image = decoded(content, cv2.IMREAD_COLOR if case["colour"] else cv2.IMREAD_GRAYSCALE)
        if height:
            image = cv2.resize(image, (width, height)).reshape(height, width, -1)
        records.append(Record(transformed(case, image.transpose(2, 0, 1), mean), number))
    (folder / "list").write_text("".join(lines))
    root = f'root_folder: "{folder}/" ' if case["root"] else ""
    return Files(
        records,
        f'image_data_param {{ source: "{folder}/list" batch_size: {case["batch"]} {root}'
        f"new_height: {height} new_width: {width} rand_skip: {case['rand_skip']} "
        f"is_color: {str(case['colour']).lower()} shuffle: {str(case['shuffle']).lower()} }}",
        [case["records"]],
    )


def write_memory_data(case: Case, folder: Path, random: np.random.Generator, text: str) -> Files:
    images = [draw_image(case, random, True).transpose(2, 0, 1) for _ in range(case["records"])]
    labels = np.arange(len(images))
    mean = read_mean(case, folder, text)
    records = [Record(transformed(case, image, mean), n) for n, image in enumerate(images)]
    if not case["added"]:
        whole = case | {"crop": 0, "mirror": False, "scale": 1.0}
        records = [
            Record(transformed(whole, image, np.zeros(1)), n) for n, image in enumerate(images)
        ]
    channels, height, width = records[0].outcomes.shape[1:]

    def feed(net: Net) -> None:
        layer, stacked = net.layers[0], np.stack(images)
        if case["added"]:
            layer.add_images(stacked, labels)
        else:
            layer.set_arrays(stacked.astype(np.float32), labels.astype(np.float32))

    return Files(
        records,
        f"memory_data_param {{ batch_size: {case['batch']} channels: {channels} "
        f"height: {height} width: {width} }}",
        [case["records"]],
        feed,
    )


def write_window_data(case: Case, folder: Path, random: np.random.Generator, text: str) -> Files:
    """The records are the foreground's windows, then the background's: of these the label is 0."""
    mean, lines = read_mean(case, folder, text), []
    kinds: list[list[Record]] = [[], []]
    high, low = map(np.float32, case["thresholds"])
    for number in range(case["records"]):
        content = coded(case["coded"], draw_image(case, random, True))
        image = decoded(content, cv2.IMREAD_COLOR if case["channels"] > 1 else 0)
        name = f"{number}.{case['coded']}"
        (folder / name).write_bytes(content)
        height, width, channels = image.shape
        count = 2 if number else 4
        lines += [f"# {number}", ("" if case["root"] else f"{folder}/") + name]
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
                [cut(case, image, box, mean, flip) for flip in (False, True)[: 1 + case["mirror"]]]
            )
            if overlap >= high:
                kinds[0].append(Record(outcomes, int(label)))
            elif overlap < low:
                kinds[1].append(Record(outcomes, 0))
    (folder / "list").write_text("\n".join(lines))
    root = f'root_folder: "{folder}/" ' if case["root"] else ""
    return Files(
        [*kinds[0], *kinds[1]],
        f'window_data_param {{ source: "{folder}/list" batch_size: {case["batch"]} {root}'
        f"fg_threshold: {case['thresholds'][0]} bg_threshold: {case['thresholds'][1]} "
        f"fg_fraction: {case['fraction']} context_pad: {case['context']} "
        f'crop_mode: "{"square" if case["square"] else "warp"}" '
        f"cache_images: {str(case['cache_images']).lower()} }}",
        [len(kind) for kind in kinds],
    )


def cut(
    case: Case, image: np.ndarray, box: tuple[int, int, int, int], mean: np.ndarray, flip: bool
) -> np.ndarray:
    """window_data_layer.cpp: a window warped to the crop."""
    x1, y1, x2, y2 = box
    crop, context = case["crop"], case["context"]
    size, pad_x, pad_y = [crop, crop], 0, 0
    if context or case["square"]:
        scale = crop / (crop - 2 * context)
        half_y, half_x = (y2 - y1 + 1) / 2, (x2 - x1 + 1) / 2
        middle_x, middle_y = x1 + half_x, y1 + half_y
        if case["square"]:
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
    if case["mean"] == "file":
        off = (mean.shape[2] - crop) // 2
        mean = mean[:, off + pad_y :, off + pad_x :][:, : size[1], : size[0]]
    out = np.zeros((image.shape[2], crop, crop))
    out[:, pad_y : pad_y + size[1], pad_x : pad_x + size[0]] = (part - mean) * case["scale"]
    return out


def nearest(value: float) -> int:
    """C's round."""
    return int(np.floor(abs(value) + 0.5)) * (1 if value >= 0 else -1)
