"""JPEGs that are decoded on the GPU: what becomes of each record, and how near the pixels are."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.input.jpegs import Decoder
from osucaffe.backends.cuda.libraries import nvjpeg
from osucaffe.backends.records import Part, transform_record
from osucaffe.data.config import DataConfig
from osucaffe.data.streams.staging import DecodedBatches
from osucaffe.errors import UserError
from osucaffe.layers.reading import images
from osucaffe.net import Net
from tests.layers.nets import build as build_net

from .fake_nvjpeg import FakeLane, jpeg, other

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reader processes are Linux's")

FORMATS = Path(__file__).parents[3] / "fixtures" / "formats"
BATCH = 4


def build(
    path: Path,
    transform: str,
    *,
    decode: str,
    there: bool | None = None,
    backend: Any = None,
    kind: str = "LMDB",
    **config: Any,
) -> Net:
    text = f"""layer {{ name: "in" type: "Data" top: "data" top: "label"
      data_param {{ source: "{path}" batch_size: {BATCH} backend: {kind} }}
      transform_param {{ {transform} }} }}
    layer {{ name: "double" type: "Power" bottom: "data" top: "double" power_param {{ scale: 2 }} }}
    layer {{ name: "none" type: "Silence" bottom: "label" }}"""
    config = DataConfig(decode=decode, **config)
    backend = backend or Cuda(graphs=False)
    net = build_net(text, backend, phase="TRAIN", seed=4, data_config=config)
    expected = decode != "host" and "raw" not in str(path) if there is None else there
    assert isinstance(net.layers[0]._pipeline, DecodedBatches) == expected
    return net


def crops(net: Net, batches: int = 3) -> list[np.ndarray]:
    """What `transform` makes of the raw records that are fed, and their labels."""
    call = next(call for call in net.programs[0] if call.name == "transform")
    found = []
    for _ in range(batches):
        net.forward()
        x, table = (net.backend.read(getattr(call, name)) for name in ("x", "table"))
        out = np.empty(call.y.shape, np.float32)
        images = x.transpose(0, 3, 1, 2) if call.interleaved else x
        for image, choice, crop in zip(images, table.tolist(), out, strict=True):
            transform_record(image, crop, tuple(choice), mean=None, scale=1)
        found += [out, net.read("label")]
    return found


def pair(path: Path, transform: str = "", decode: str = "auto", **options: Any) -> list[Net]:
    return [build(path, transform, decode=each, **options) for each in (decode, "host")]


def assert_same(nets: Sequence[Net], batches: int = 3) -> list[np.ndarray]:
    found, wanted = (crops(net, batches) for net in nets)
    np.testing.assert_equal(found, wanted)
    assert np.ptp(found[0]) > 20  # there is something to see
    return found


def close(nets: Sequence[Net]) -> None:
    for net in nets:
        net.layers[0].close()


@pytest.mark.parametrize("decode", ["auto", "gpu"])
@pytest.mark.parametrize(
    "transform", ["", "crop_size: 24 mirror: true", "mirror: true force_gray: true"]
)
def test_records_are_those_that_the_readers_decode(
    lane: type[FakeLane], transform: str, decode: str
) -> None:
    nets = pair(FORMATS / "jpeg6_lmdb", transform, decode)
    assert_same(nets)
    assert lane.decoded >= 1 + 3 * BATCH  # the one that it begins with, too
    close(nets)


SIZES = [(40, 48), (61, 33), (24, 24), (40, 48), (25, 90)]


def test_crops_of_images_that_differ_in_size(lane: type[FakeLane], database: Any) -> None:
    nets = pair(
        database([jpeg(*size, seed) for seed, size in enumerate(SIZES)]),
        "crop_size: 24 mirror: true",
    )
    assert_same(nets)
    assert lane.decoded >= 1 + 3 * BATCH
    for rank in (0, 1):
        for net in nets:
            net.layers[0].split(rank, 2)
            net.layers[0].position = 400
        assert_same(nets, batches=4)
        assert len({net.layers[0].position for net in nets}) == 1
    close(nets)
    assert_same(nets, batches=2)  # they start again
    close(nets)


def test_threads_hand_them_on_where_processes_cannot(
    lane: type[FakeLane], monkeypatch: pytest.MonkeyPatch, database: Any
) -> None:
    monkeypatch.setattr(images, "can_be_processes", lambda: False)
    nets = pair(database([jpeg(40, 48, seed) for seed in range(9)]), "mirror: true", readers=3)
    assert_same(nets, batches=8)
    close(nets)


def test_what_the_decoder_cannot_decode_is_decoded_here(
    lane: type[FakeLane], database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lane.refused = (jpeg(40, 48, 2), jpeg(40, 48, 6))
    images = [jpeg(40, 48, seed) for seed in range(16)]
    images += [jpeg(40, 48, 3) + b"\0", other("PNG"), other("CMYK"), other("progressive")]
    nets = pair(database(images), "mirror: true")
    with caplog.at_level(logging.INFO, "osucaffe"):
        found = assert_same(nets, batches=10)
    assert found[1].tolist() == [0, 1, 2, 3]
    assert "the readers decode all" not in caplog.text
    close(nets)


def test_one_that_refuses_nearly_all_is_given_nothing(
    lane: type[FakeLane], database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    images = [jpeg(40, 48, seed) for seed in range(24)]
    nets = pair(database(images))
    lane.refused = tuple(images)
    with caplog.at_level(logging.INFO, "osucaffe"):
        assert_same(nets, batches=12)
    assert caplog.text.count("the readers decode all") == 1
    assert not nets[0].layers[0]._pipeline._staging.hands_on
    close(nets)


BAD = {
    "cut short": lambda: (jpeg(40, 48, 5)[:-200], "cannot be read"),
    "another size": lambda: (jpeg(40, 47, 5), "is 3x40x47, but the first one is 3x40x48"),
    "gray": lambda: (jpeg(40, 48, 5, "Gray"), "is 1x40x48, but the first one is 3x40x48"),
    "nothing": lambda: (b"", "cannot be read"),
    "no image": lambda: (b"\xff\xd8\xff nonsense \xff\xd9", "cannot be read"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_record_is_named_or_skipped(lane: type[FakeLane], database: Any, kind: str) -> None:
    bad, message = BAD[kind]()
    path = database([jpeg(40, 48), jpeg(40, 48, 1), bad, jpeg(40, 48, 3)])
    net = build(path, "", decode="auto")
    for _ in range(2):
        with pytest.raises(UserError, match=f'record "00000002" of {path}.*{message}'):
            net.forward()
    net.layers[0].close()
    nets = pair(path, skip_bad=True)
    assert assert_same(nets)[1].tolist() == [0, 1, 3, 3]
    close(nets)


def test_raw_records_need_no_decoder(lane: type[FakeLane]) -> None:
    nets = pair(FORMATS / "raw6_lmdb", "crop_size: 20")
    assert_same(nets)
    assert lane.decoded == 0
    close(nets)


@pytest.mark.parametrize(
    ("decode", "large", "there"),
    [
        ("auto", 40 * 48, True),
        ("auto", 40 * 48 + 1, False),
        ("gpu", 1 << 30, True),
        ("host", 0, False),
    ],
)
def test_what_decodes(
    lane: type[FakeLane], database: Any, monkeypatch: pytest.MonkeyPatch, decode: str, large: int,
    there: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(images, "_LARGE", large)
    path = database([jpeg(40, 48)])
    net = build(path, "", decode=decode, there=there)
    assert net.layers[0].remedy == "--readers" + " and --decode" * (not there)
    net.layers[0].close()


def test_a_gpu_without_engines(lane: type[FakeLane], database: Any) -> None:
    lane.kinds = (nvjpeg.GPU_HYBRID,)
    path = database([jpeg(40, 48, seed) for seed in range(5)])
    assert Cuda().image_decoder(always=False) is None
    nets = pair(path, decode="gpu")
    assert_same(nets)
    close(nets)


def test_engines_that_decode_nothing_are_none(lane: type[FakeLane]) -> None:
    lane.decode = lambda *_: False  # type: ignore[assignment]
    assert Cuda().image_decoder(always=False) is None
    with pytest.raises(UserError, match=r"--decode gpu: GPU 0 cannot \(nvJPEG decodes no JPEG\)"):
        Cuda().image_decoder(always=True)


def test_a_missing_library_is_named_where_it_is_asked_for(
    lane: type[FakeLane], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(nvjpeg, "load_cublas", lambda: 11)
    nvjpeg.load.cache_clear()
    monkeypatch.setattr(nvjpeg, "Lane", REAL_LANE)
    with pytest.raises(UserError, match=r"needs nvJPEG \(.*libnvjpeg.so.11.*osucaffe\[cuda11\]"):
        build(FORMATS / "jpeg6_lmdb", "", decode="gpu")
    with caplog.at_level(logging.INFO, "osucaffe"):
        assert Cuda().image_decoder(always=False) is None
    assert "The CPU decodes JPEGs: decoding on a GPU needs nvJPEG" in caplog.text
    nvjpeg.load.cache_clear()


REAL_LANE = nvjpeg.Lane

SUBSAMPLINGS = {"Gray": 1, "444": 3, "422": 5, "420": 5}
"""How many levels two decoders may lie apart.

Each rounds an inverse cosine transform that is exact to less than a level: these may differ by 1.
Colours are Y + 1.772 (Cb - 128) at most, rounded once more on both sides: by less than
1 + 1.772 + 1. Where chroma is interpolated, that is rounded too and may differ by 2: by less than
1 + 2 * 1.772 + 1.
"""
KINDS = {"engines": nvjpeg.HARDWARE, "multiprocessors": nvjpeg.GPU_HYBRID}


def decode(decoder: Decoder, images: list[bytes], part: Part, places: list[int], batch: Any) -> Any:
    buffers = [np.frombuffer(each, np.uint8) for each in images]
    begins = np.array([each.ctypes.data for each in buffers])
    sizes = np.array([len(each) for each in images])
    return decoder.decode(begins, sizes, np.array([part] * len(images)), np.array(places), batch)


@pytest.fixture(params=KINDS)
def decoder(request: pytest.FixtureRequest, gpu: Any) -> Decoder:
    try:
        return Decoder(gpu, KINDS[request.param])
    except nvjpeg.NvjpegError:
        pytest.skip(f"this GPU has no {request.param} for JPEGs")


@pytest.mark.gpu
@pytest.mark.parametrize("extents", [(64, 96), (61, 47), (33, 50), (17, 9), (375, 500)])
@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_a_gpu_decodes_as_the_readers_do(decoder: Any, subsampling: str, extents: Any) -> None:
    channels = 1 if subsampling == "Gray" else 3
    images = [jpeg(*extents, seed, subsampling) for seed in range(5)]
    whole = Part(extents, (0, 0), (0, 0), extents)
    batch = decoder.allocate((5, *extents, channels))
    order = [3, 0, 4, 2, 1]
    assert decode(decoder, images, whole, order, batch).all()
    for source, place in zip(images, order, strict=True):
        wanted = simplejpeg.decode_jpeg(source, colorspace="BGR" if channels == 3 else "GRAY")
        apart = np.abs(batch[place].get().astype(int) - wanted)
        assert apart.max() <= SUBSAMPLINGS[subsampling]
        assert apart.mean() < 0.5
    decoder.put(wanted := np.ascontiguousarray(wanted[::-1]), 2, batch)
    assert (batch[2].get() == wanted).all()


@pytest.mark.gpu
def test_a_gpu_takes_gray_of_colours_and_a_part(decoder: Any) -> None:
    source, part = jpeg(61, 47), Part((61, 47), (5, 11), (2, 3), (20, 30))
    batch = decoder.allocate((1, 24, 40, 1))
    assert decode(decoder, [source], part, [0], batch).all()
    wanted = simplejpeg.decode_jpeg(source, colorspace="GRAY")[5:25, 11:41]
    assert np.abs(batch[0, 2:22, 3:33].get().astype(int) - wanted).max() <= SUBSAMPLINGS["Gray"]


@pytest.mark.gpu
def test_those_that_a_gpu_refuses_are_found(decoder: Any) -> None:
    extents, bad = (64, 96), {2, 7}
    good = [jpeg(*extents, seed) for seed in range(11)]
    images = [bytes(2) + each[2:] if n in bad else each for n, each in enumerate(good)]
    batch = decoder.allocate((11, *extents, 3))
    whole = Part(extents, (0, 0), (0, 0), extents)
    done = decode(decoder, images, whole, list(range(11)), batch)
    assert set(np.flatnonzero(~done)) == bad
    for number in np.flatnonzero(done):
        wanted = simplejpeg.decode_jpeg(good[number], colorspace="BGR")
        assert np.abs(batch[number].get().astype(int) - wanted).max() <= SUBSAMPLINGS["420"]


@pytest.mark.gpu
@pytest.mark.parametrize("transform", ["", "crop_size: 24 mirror: true mean_value: 9"])
@pytest.mark.parametrize("decode", ["auto", "gpu"])
def test_a_net_on_a_gpu_sees_the_same(gpu: Any, database: Any, transform: str, decode: str) -> None:
    if gpu.image_decoder(always=decode == "gpu") is None:
        pytest.skip("this GPU has no JPEG engines")
    sizes = SIZES if transform else [(40, 48)] * 5
    images = [jpeg(*size, seed) for seed, size in enumerate(sizes)]
    path = database([*images, other("PNG"), images[0][:-100], other("CMYK")])
    nets = pair(path, transform, decode, backend=gpu, skip_bad=True)
    for _ in range(8):
        for net in nets:
            net.forward()
        found, wanted = (net.read("double") / 2 for net in nets)
        assert np.abs(found - wanted).max() <= SUBSAMPLINGS["420"]
        labels = [net.read("label").tolist() for net in nets]
        assert labels[0] == labels[1]
    assert np.ptp(wanted) > 20
    assert nets[0].layers[0]._pipeline._staging.hands_on, "plain JPEGs are refused"
    close(nets)
