"""JPEGs that are decoded on the GPU: what becomes of each record, and how near the pixels are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from google.protobuf import text_format

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.records import Part, transform_record
from osucaffe.data.config import DataConfig
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import caffe_pb2

from .fake_codec import FakeCodec, jpeg, other, without_library

FORMATS = Path(__file__).parents[3] / "fixtures" / "formats"


def build(path: Path, transform: str, *, there: bool, backend: Any = None, **config: Any) -> Net:
    text = f"""layer {{ name: "in" type: "Data" top: "data" top: "label"
      data_param {{ source: "{path}" batch_size: 4 backend: LMDB }}
      transform_param {{ {transform} }} }}
    layer {{ name: "double" type: "Power" bottom: "data" top: "double" power_param {{ scale: 2 }} }}
    layer {{ name: "none" type: "Silence" bottom: "label" }}"""
    param = text_format.Parse(text, caffe_pb2.NetParameter())
    config = DataConfig(decode="gpu" if there else "host", **config)
    return Net(param, backend=backend or Cuda(graphs=False), seed=4, data_config=config)


def crops(net: Net, batches: int = 3) -> list[np.ndarray]:
    """What `transform` makes of the raw records that are fed, and their labels."""
    call = next(call for call in net.programs[0] if call.name == "transform")
    found = []
    for _ in range(batches):
        net.forward()
        x, table = (net.backend.read(call.reads[name]) for name in ("x", "table"))
        out = np.empty(call.writes["y"].shape, np.float32)
        images = x.transpose(0, 3, 1, 2) if call.settings["interleaved"] else x
        for image, choice, crop in zip(images, table.tolist(), out, strict=True):
            transform_record(image, crop, tuple(choice), mean=None, scale=1)
        found += [out, net.read("label")]
    net.layers[0].close()
    return found


def assert_same(path: Path, transform: str, **options: Any) -> list[np.ndarray]:
    found, wanted = (
        crops(build(path, transform, there=there, **options)) for there in (True, False)
    )
    for one, same in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, same)
    assert np.ptp(found[0]) > 20  # there is something to see
    return found


@pytest.mark.parametrize(
    "transform", ["", "crop_size: 24 mirror: true", "mirror: true force_gray: true"]
)
def test_records_are_those_that_the_readers_decode(codec: FakeCodec, transform: str) -> None:
    assert_same(FORMATS / "jpeg6_lmdb", transform)
    assert codec.decoded >= 1 + 3 * 4


def test_crops_of_images_that_differ_in_size(codec: FakeCodec, database: Any) -> None:
    shapes = [(40, 48), (61, 33), (24, 24), (40, 48), (25, 90)]
    path = database([jpeg(*shape, seed) for seed, shape in enumerate(shapes)])
    assert_same(path, "crop_size: 24 mirror: true")
    assert codec.decoded >= 1 + 3 * 4


def test_what_the_decoder_cannot_decode_the_readers_do(
    codec: FakeCodec, database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    refused, trailing = jpeg(40, 48, 2), jpeg(40, 48, 3) + b"\0"
    codec.works = lambda source: source != refused
    images = [jpeg(40, 48), jpeg(40, 48, 1), refused, trailing, other("PNG"), other("CMYK")]
    # One reader, so that the batches are read in order.
    found = assert_same(database(images), "mirror: true", readers=1)
    assert found[1].tolist() == [0, 1, 2, 3]
    assert 'record "00000002"' in caplog.text
    assert 'record "00000004"' not in caplog.text


BAD = {
    "cut short": lambda: (jpeg(40, 48, 5)[:-200], "cannot be read"),
    "another size": lambda: (jpeg(40, 47, 5), "is 3x40x47, but the first record is 3x40x48"),
    "gray": lambda: (jpeg(40, 48, 5, "Gray"), "is 1x40x48, but the first record is 3x40x48"),
    "nothing": lambda: (b"", "cannot be read"),
    "no image": lambda: (b"\xff\xd8\xff nonsense \xff\xd9", "cannot be read"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_record_is_named_or_skipped(codec: FakeCodec, database: Any, kind: str) -> None:
    bad, message = BAD[kind]()
    path = database([jpeg(40, 48), jpeg(40, 48, 1), bad, jpeg(40, 48, 3)])
    net = build(path, "", there=True)
    with pytest.raises(UserError, match=f'record "00000002" of {path}.*{message}'):
        net.forward()
    net.layers[0].close()
    found = assert_same(path, "", skip_bad=True)
    assert found[1].tolist() == [0, 1, 3, 3]


def test_raw_records_need_no_decoder(codec: FakeCodec) -> None:
    assert_same(FORMATS / "raw6_lmdb", "crop_size: 20")
    assert codec.decoded == 0


def test_a_missing_library_is_named(codec: FakeCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    codec.works = lambda source: False  # as without nvJPEG
    with pytest.raises(UserError, match=r"decodes no JPEG on GPU 0.*osucaffe\[decode13\]"):
        build(FORMATS / "jpeg6_lmdb", "", there=True)
    without_library(monkeypatch)
    with pytest.raises(UserError, match=r"needs nvImageCodec.*osucaffe\[decode13\]"):
        build(FORMATS / "jpeg6_lmdb", "", there=True)
    build(FORMATS / "jpeg6_lmdb", "", there=False).layers[0].close()


SUBSAMPLINGS = {"Gray": 1, "444": 3, "422": 5, "420": 5}
"""How many levels two decoders may lie apart.

Each rounds an inverse cosine transform that is exact to less than a level: these may differ by 1.
Colours are Y + 1.772 (Cb - 128) at most, rounded once more on both sides: by less than
1 + 1.772 + 1. Where chroma is interpolated, that is rounded too and may differ by 2: by less than
1 + 2 * 1.772 + 1.
"""


@pytest.mark.gpu
@pytest.mark.parametrize("extents", [(64, 96), (61, 47), (33, 50), (17, 9), (375, 500)])
@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_a_gpu_decodes_as_the_readers_do(gpu: Any, subsampling: str, extents: Any) -> None:
    channels = 1 if subsampling == "Gray" else 3
    jpegs = [jpeg(*extents, seed, subsampling) for seed in range(5)]
    decoder, whole = gpu.image_decoder(), Part(extents, (0, 0), (0, 0), extents)
    batch = decoder.allocate((5, *extents, channels))
    views = [memoryview(each) for each in jpegs]
    order = [3, 0, 4, 2, 1]
    assert decoder.decode(views, [whole] * 5, order, batch) == [True] * 5
    for source, place in zip(jpegs, order, strict=True):
        wanted = simplejpeg.decode_jpeg(source, colorspace="BGR" if channels == 3 else "GRAY")
        apart = np.abs(batch[place].get().astype(int) - wanted)
        assert apart.max() <= SUBSAMPLINGS[subsampling]
        assert apart.mean() < 0.5
    decoder.put(wanted := np.ascontiguousarray(wanted[::-1]), 2, batch)
    assert (batch[2].get() == wanted).all()


@pytest.mark.gpu
def test_a_gpu_takes_gray_of_colours_and_a_part(gpu: Any) -> None:
    source, part = jpeg(61, 47), Part((61, 47), (5, 11), (2, 3), (20, 30))
    decoder = gpu.image_decoder()
    batch = decoder.allocate((1, 24, 40, 1))
    assert decoder.decode([memoryview(source)], [part], [0], batch) == [True]
    wanted = simplejpeg.decode_jpeg(source, colorspace="GRAY")[5:25, 11:41]
    assert np.abs(batch[0, 2:22, 3:33].get().astype(int) - wanted).max() <= SUBSAMPLINGS["Gray"]


@pytest.mark.gpu
@pytest.mark.parametrize("transform", ["", "crop_size: 24 mirror: true mean_value: 9"])
def test_a_net_on_a_gpu_sees_the_same(gpu: Any, database: Any, transform: str) -> None:
    sizes = [(40, 48), (61, 33), (24, 24), (40, 48), (25, 90)] if transform else [(40, 48)] * 5
    images = [jpeg(*size, seed) for seed, size in enumerate(sizes)]
    path = database([*images, other("PNG"), images[0][:-100], other("CMYK")])
    nets = [
        build(path, transform, there=there, backend=gpu, skip_bad=True) for there in (True, False)
    ]
    for _ in range(8):
        for net in nets:
            net.forward()
        found, wanted = (net.read("double") / 2 for net in nets)
        assert np.abs(found - wanted).max() <= SUBSAMPLINGS["420"]
        labels = [net.read("label").tolist() for net in nets]
        assert labels[0] == labels[1]
    assert np.ptp(wanted) > 20
    for net in nets:
        net.layers[0].close()


@pytest.mark.gpu
def test_a_gpu_names_a_bad_record(gpu: Any, database: Any) -> None:
    path = database([jpeg(40, 48), jpeg(40, 48, 1)[:-200]])
    net = build(path, "", there=True, backend=gpu)
    with pytest.raises(UserError, match=f'record "00000001" of {path} cannot be read'):
        net.forward()
    net.layers[0].close()
