"""Tests of records that the backend transforms: they become what the reading threads would make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from osucaffe.backends.cpu import Cpu
from osucaffe.data.databases.datum import make_datum
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import caffe_pb2
from tests.data.records import FORMATS, write_records
from tests.layers.nets import build

MEAN = f'mean_file: "{FORMATS / "mnist200_mean.binaryproto"}" '


def cpu(raw: bool) -> Cpu:
    backend = Cpu()
    backend.raw_records = raw
    return backend


def read_net(backend: Any, source: Path, transform: str = "", **options: Any) -> Net:
    """A net that reads a database, and does something behind it that takes memory."""
    data = f'type: "Data" data_param {{ source: "{source}" batch_size: 7 backend: LMDB }}'
    return net_of(backend, data, transform, **options)


def net_of(backend: Any, data: str, transform: str, **options: Any) -> Net:
    """The same with any layer that brings images."""
    text = f"""layer {{ name: "in" top: "data" top: "label" {data}
        transform_param {{ {transform} }} }}
    layer {{ name: "double" type: "Power" bottom: "data" top: "double" power_param {{ scale: 2 }} }}
    layer {{ name: "flat" type: "Flatten" bottom: "double" top: "flat" }}
    layer {{ name: "none" type: "Silence" bottom: "label" }}"""
    return build(text, backend, **{"phase": "TRAIN", "seed": 4} | options)


def taken(net: Net, count: int) -> list[np.ndarray]:
    """The data and labels of so many batches."""
    found = []
    for _ in range(count):
        net.forward()
        found += [net.read("flat"), net.read("label")]
    return found


def batches(net: Net, count: int = 3) -> list[np.ndarray]:
    """The same, after which nothing is read any more."""
    found = taken(net, count)
    net.layers[0].close()
    return found


SETTINGS = [
    ("mnist200_lmdb", ""),
    ("mnist200_lmdb", MEAN + "scale: 0.00390625"),
    ("mnist200_lmdb", MEAN + "crop_size: 20 mirror: true scale: 0.017"),
    ("raw6_lmdb", "crop_size: 20 mirror: true mean_value: 104 mean_value: 117 mean_value: 123"),
    ("raw6_lmdb", "mirror: true mean_value: 99.5 scale: 0.3"),
    ("jpeg6_lmdb", "crop_size: 32 mean_value: 7 force_gray: true"),
]


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize(("source", "transform"), SETTINGS)
def test_the_backend_makes_the_same_of_them(source: str, transform: str, phase: str) -> None:
    made = [read_net(cpu(raw), FORMATS / source, transform, phase=phase) for raw in (False, True)]
    calls = [[call.name for call in net.programs[0][:2]] for net in made]
    assert calls[1] == ["host", "transform"] != calls[0]
    np.testing.assert_equal(batches(made[1]), batches(made[0]))


def test_every_blob_of_an_inspectable_net_can_be_read() -> None:
    net = read_net(cpu(True), FORMATS / "mnist200_lmdb", "scale: 0.5", inspectable=True)
    flat, _ = batches(net, 1)
    np.testing.assert_array_equal(2 * net.read("data").reshape(flat.shape), flat)


@pytest.fixture
def database(tmp_path: Path) -> Any:
    def make(values: list[bytes]) -> Path:
        return write_records(tmp_path / "lmdb", values)

    return make


def floats(count: int) -> bytes:
    datum = caffe_pb2.Datum(channels=1, height=1, width=count, float_data=[0.5] * count)
    return datum.SerializeToString()


def test_records_of_floats_are_transformed_by_the_threads(database: Any) -> None:
    net = read_net(cpu(True), database([floats(4)] * 3))
    assert [call.name for call in net.programs[0]].count("transform") == 0
    assert (batches(net, 1)[0] == 1).all()


def test_floats_among_bytes_are_refused(database: Any) -> None:
    path = database([make_datum(np.zeros((1, 1, 4), np.uint8), 1), floats(4)])
    with pytest.raises(UserError, match=r'record "00000001".*holds float_data'):
        batches(read_net(cpu(True), path))


IMAGES = [
    ("", "crop_size: 20 mirror: true mean_value: 104 mean_value: 117 mean_value: 123"),
    ("shuffle: true", "crop_size: 24 mean_value: 9"),
    ("shuffle: true rand_skip: 3 is_color: false", "crop_size: 9 mirror: true scale: 0.25"),
    ("new_height: 21 new_width: 33", "mirror: true mean_value: 50 scale: 0.5"),
    ("new_height: 21 new_width: 33 is_color: false", ""),
]


@pytest.fixture
def listed(tmp_path: Path) -> str:
    """The settings of ImageData for five JPEGs, of which two have sizes of their own."""
    random = np.random.default_rng(0)
    lines = []
    for number, extents in enumerate([(30, 40), (30, 40), (24, 50), (30, 40), (61, 25)]):
        image = random.integers(0, 256, (*extents, 3), dtype=np.uint8)
        (tmp_path / f"{number}.jpg").write_bytes(simplejpeg.encode_jpeg(image))
        lines.append(f"{number}.jpg {number}\n")
    (tmp_path / "list").write_text("".join(lines))
    return f'source: "{tmp_path}/list" root_folder: "{tmp_path}/" batch_size: 4'


def image_net(backend: Any, listed: str, text: str, transform: str, phase: str) -> Net:
    data = f'type: "ImageData" image_data_param {{ {listed} {text} }}'
    return net_of(backend, data, transform, phase=phase)


@pytest.mark.gpu
@pytest.mark.parametrize(("source", "text", "transform"), [
    *(("", *each) for each in IMAGES), *((name, "", transform) for name, transform in SETTINGS),
])  # fmt: skip
def test_a_gpu_makes_the_same_of_them(listed: str, source: str, text: str, transform: str) -> None:
    from osucaffe.backends.cuda import Cuda

    found, wanted = (
        batches(
            read_net(backend, FORMATS / source, transform)
            if source
            else image_net(backend, listed, text, transform, "TRAIN")
        )
        for backend in (Cuda(), Cpu())
    )
    np.testing.assert_equal(found, wanted)
