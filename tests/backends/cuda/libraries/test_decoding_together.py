"""JPEGs that a GPU's engines and the readers decode together: same batches, same messages."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.libraries import nvimagecodec
from osucaffe.backends.records import transform_record
from osucaffe.data import staging
from osucaffe.data.config import DataConfig
from osucaffe.data.staging import DecodedBatches
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import caffe_pb2

from .fake_codec import FakeCodec, jpeg, other, without_library

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reader processes are Linux's")

COUNT, BATCH = 24, 8


def build(path: Path, decode: str, *, skip: bool = False, backend: Any = None) -> Net:
    text = f"""layer {{ name: "in" type: "Data" top: "data" top: "label"
      data_param {{ source: "{path}" batch_size: {BATCH} backend: LMDB }}
      transform_param {{ crop_size: 24 mirror: true }} }}
    layer {{ name: "none" type: "Silence" bottom: "data" bottom: "label" }}"""
    # Two parts of a batch, and of each the engines are given a half or so.
    config = DataConfig(decode=decode, skip_bad=skip, readers=6 if decode == "both" else 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "CORE_RATE", 5000 * 256 * 256)
        param = text_format.Parse(text, caffe_pb2.NetParameter())
        return Net(param, backend=backend or Cuda(graphs=False), seed=4, data_config=config)


def fed(net: Net, batches: int = 6) -> list[np.ndarray]:
    """The crops of what is fed, and its labels."""
    call = next(call for call in net.programs[0] if call.name == "transform")
    found = []
    for _ in range(batches):
        net.forward()
        x, table = (net.backend.read(call.reads[name]) for name in ("x", "table"))
        crops = np.empty(call.writes["y"].shape, np.float32)
        images = x.transpose(0, 3, 1, 2)
        for image, choice, crop in zip(images, table.tolist(), crops, strict=True):
            transform_record(image, crop, tuple(choice), mean=None, scale=1)
        found += [crops, net.read("label")]
    return found


def assert_same(nets: list[Net], most: int = 0, batches: int = 6) -> None:
    for one, same in zip(*(fed(net, batches) for net in nets), strict=True):
        assert np.abs(one - same).max() <= most


def close(nets: list[Net]) -> None:
    for net in nets:
        net.layers[0].close()


def pair(path: Path, **options: Any) -> list[Net]:
    nets = [build(path, decode, **options) for decode in ("both", "host")]
    assert isinstance(nets[0].layers[0]._pipeline, DecodedBatches)
    return nets


@pytest.fixture
def path(database: Any) -> Path:
    sizes = [(40, 48), (61, 33), (24, 24), (40, 48), (25, 90)]
    return database([jpeg(*sizes[number % 5], number) for number in range(COUNT)])


def test_batches_are_those_of_the_readers(codec: FakeCodec, path: Path) -> None:
    nets = pair(path)
    assert_same(nets)
    tried = 1
    assert tried < codec.decoded < tried + 9 * BATCH  # as the batches ahead
    for rank in (0, 1):
        for net in nets:
            net.layers[0].split(rank, 2)
            net.layers[0].position = 400
        assert_same(nets, batches=4)
        assert len({net.layers[0].position for net in nets}) == 1
    close(nets)
    assert_same(nets, batches=2)  # they start again
    close(nets)


def test_what_the_engines_refuse_is_decoded_here(
    codec: FakeCodec,
    database: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = [jpeg(40, 48, number) for number in (0, 5)]
    images = [*refused, *(jpeg(40, 48, number) for number in range(10, 20)), other("PNG")]
    codec.works = lambda source: source not in refused
    nets = pair(database(images))
    with caplog.at_level(logging.INFO, "osucaffe"):
        assert_same(nets)
    assert "is not for the GPU's decoder" not in caplog.text
    close(nets)


def test_engines_that_refuse_nearly_all_are_given_nothing(
    codec: FakeCodec,
    path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    nets = pair(path)
    codec.works = lambda source: False
    with caplog.at_level(logging.INFO, "osucaffe"):
        assert_same(nets, batches=12)
    assert caplog.text.count("the readers decode all") == 1
    assert nets[0].layers[0]._pipeline._staging.share == 0
    close(nets)


@pytest.mark.parametrize("cut", [200, 0])
def test_a_bad_record_is_named_or_skipped(codec: FakeCodec, database: Any, cut: int) -> None:
    bad = jpeg(40, 48, 5)[:-cut] if cut else jpeg(23, 48, 5)
    images = [jpeg(40, 48), jpeg(40, 48, 1), bad, jpeg(40, 48, 3)]
    path = database([*images, *(jpeg(40, 48, number) for number in range(4, 20))])
    nets = pair(path)
    messages = []
    for net in nets:
        for _ in range(2):
            with pytest.raises(UserError, match=f'record "00000002" of {path}') as caught:
                fed(net)
            messages.append(str(caught.value))
    assert len(set(messages)) == 1
    close(nets)
    nets = pair(path, skip=True)
    assert_same(nets)
    close(nets)


def test_a_missing_library_is_named(
    codec: FakeCodec, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_library(monkeypatch)
    with pytest.raises(UserError, match=r"--decode gpu or both needs nvImageCodec.*decode13"):
        build(path, "both")


def test_a_gpu_without_engines_leaves_all_to_the_readers(
    codec: FakeCodec, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvimagecodec, "_ENGINE_RATES", {})
    net = build(path, "both")
    assert not isinstance(net.layers[0]._pipeline, DecodedBatches)
    close([net])


@pytest.mark.gpu
def test_on_a_gpu(gpu: Any, database: Any) -> None:
    nets = pair(database([jpeg(256, 256, number) for number in range(COUNT)]), backend=gpu)
    assert nets[0].layers[0]._pipeline._staging.share > 0.3
    assert_same(nets, most=5, batches=9)
    assert nets[0].layers[0]._pipeline._staging.share > 0, "the engines refuse plain JPEGs"
    close(nets)
