"""What tests of decoding on GPUs share: nvJPEG or a stand-in, databases of images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.libraries import nvjpeg
from osucaffe.data.databases.database import record_key, write_database
from osucaffe.layers.reading import images
from osucaffe.proto import caffe_pb2

from ..simulated import simulate
from .fake_nvjpeg import FakeLane


@pytest.fixture(autouse=True)
def large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small images are for the engines, too."""
    monkeypatch.setattr(images, "_LARGE", 0)


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> type[FakeLane]:
    """What decodes on a simulated GPU."""

    class Lane(FakeLane):
        pass

    simulate(monkeypatch)
    monkeypatch.setattr(nvjpeg, "Lane", Lane)
    return Lane


@pytest.fixture
def database(tmp_path: Path) -> Callable[[list[bytes]], Path]:
    def make(images: list[bytes]) -> Path:
        data = [
            caffe_pb2.Datum(data=image, label=label, encoded=True).SerializeToString()
            for label, image in enumerate(images)
        ]
        write_database(tmp_path / "lmdb", [(record_key(i), value) for i, value in enumerate(data)])
        return tmp_path / "lmdb"

    return make


@pytest.fixture
def gpu() -> Any:
    return Cuda()
