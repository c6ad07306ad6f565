"""The files that the nets of these tests read: a few of each kind, in one folder."""

from __future__ import annotations

import io
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from osucaffe.data.databases.database import record_key, write_database
from osucaffe.data.databases.datum import make_datum
from osucaffe.forks.ssd.make_annotated import annotated_record
from osucaffe.proto import array_to_blob, caffe_pb2
from tests.forks.cascade.test_object_data import make_list
from tests.forks.segmentation.test_dense_image_data import make_pairs

random = np.random.default_rng(11)


def make_files(folder: Path) -> None:
    """All of them."""
    _pictures(folder)
    _databases(folder)
    _videos(folder)
    for name, sizes in (("pairs", [(6, 8)] * 3), ("objects", [])):
        (folder / name).mkdir()
        make_pairs(folder / name, sizes) if sizes else make_list(
            folder / name, [(60, 90), (90, 60)] * 2
        )
    (folder / "easy").mkdir()
    make_list(folder / "easy", [(60, 90)] * 3, difficult=False)
    with h5py.File(folder / "0.h5", "w") as file:
        file["data"], file["label"] = random.random((7, 2, 3)), np.arange(7)
    (folder / "files.txt").write_text(f"{folder}/0.h5\n")
    for name, values in (("mean", random.random((3, 12, 16)) * 99), ("infogain", 3 * np.eye(4)),
                         ("ones", np.ones((4, 4)))):  # fmt: skip
        content = array_to_blob(values.astype(np.float32)).SerializeToString()
        (folder / f"{name}.binaryproto").write_bytes(content)
    (folder / "sizes.txt").write_text("a 40 50\nb 60 30\n")


def _pictures(folder: Path) -> None:
    (folder / "heat").mkdir()
    listed, floats, windows = [], [], []
    for i in range(5):
        pixels = random.integers(0, 256, (12, 16, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        Image.fromarray(pixels[..., 0]).save(folder / "heat" / f"{i}.png")
        listed.append(f"{i}.png {i}")
        floats.append(f"{i}.png {i / 2} {i / 4} {i / 8}")
        windows.append(f"# {i}\n{i}.png\n3\n12\n16\n2\n1 0.{i + 4} 2 3 9 11\n0 0.{i} 4 0 12 7")
    for name, lines in (("list", listed), ("floats", floats), ("windows", windows)):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def _databases(folder: Path) -> None:
    images = [random.integers(256, size=(3, 12, 16)).astype(np.uint8) for _ in range(5)]
    write_database(
        folder / "lmdb",
        ((record_key(i), make_datum(each, i)) for i, each in enumerate(images)),
    )
    for name, step in (("high", 1), ("low", 2)):
        parts = ((record_key(i), make_datum(x[:, ::step, ::step], 0)) for i, x in enumerate(images))
        write_database(folder / name, parts)
    for name, mode in (("colour", "RGB"), ("gray", "L")):
        coded = []
        for i, each in enumerate(images):
            content = io.BytesIO()
            Image.fromarray(each.transpose(1, 2, 0)).convert(mode).save(content, "png")
            coded.append(caffe_pb2.Datum(encoded=True, data=content.getvalue(), label=i))
        parts = [(record_key(i), each.SerializeToString()) for i, each in enumerate(coded)]
        write_database(folder / name, iter(parts))
        whole = [caffe_pb2.AnnotatedDatum(datum=each) for each in coded]
        parts = [(record_key(i), each.SerializeToString()) for i, each in enumerate(whole)]
        write_database(folder / f"{name}_boxes", iter(parts))
    boxes = np.array([[0.1, 0.2, 0.6, 0.7], [0.5, 0.5, 0.9, 0.8]])
    annotated = [random.integers(256, size=(3, 40, 50)).astype(np.uint8) for _ in range(4)]
    records = [
        annotated_record(each, np.array([1, 2]), boxes + 0.02 * i)
        for i, each in enumerate(annotated)
    ]
    write_database(folder / "boxes", ((record_key(i), each) for i, each in enumerate(records)))


def _videos(folder: Path) -> None:
    lines = []
    for name, frames in (("long", 12), ("short", 7)):
        own = folder / name
        own.mkdir()
        for number in range(1, frames + 1):
            for kind in "x", "y", "img":
                pixels = random.integers(0, 256, (8, 10, 3)[: 3 if kind == "img" else 2])
                stem = "img" if kind == "img" else f"flow_{kind}"
                Image.fromarray(pixels.astype(np.uint8)).save(own / f"{stem}_{number:04}.jpg")
        lines.append(f"{own} {frames} {len(lines) + 5}")
    (folder / "videos.txt").write_text("\n".join(lines) + "\n")
