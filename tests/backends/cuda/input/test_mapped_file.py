"""Raw records that a GPU takes from the file: the batches that the host makes, or a message."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.input import mapped_file
from osucaffe.backends.cuda.input.mapped_file import MappedFile, runs
from osucaffe.data.databases.database import record_key, write_database
from osucaffe.data.databases.datum import make_datum
from osucaffe.errors import UserError
from osucaffe.net import Net
from tests.layers.nets import build as build_net

from ..simulated import fake_cupy, simulate
from .test_jpegs import crops

COUNT, SIDE, BATCH = 40, 80, 7


def write(path: Path, odd: dict[int, bytes] | None = None) -> Path:
    """An LMDB of raw records, some of them odd."""
    images = np.random.default_rng(1).integers(0, 256, (COUNT, 3, SIDE, SIDE), np.uint8)
    records = [make_datum(image, 100 * number) for number, image in enumerate(images)]
    for number, record in (odd or {}).items():
        records[number] = record
    write_database(path, [(record_key(at), record) for at, record in enumerate(records)])
    return path


def build(path: Path, transform: str = "crop_size: 70 mirror: true") -> Net:
    text = f"""layer {{ name: "in" type: "Data" top: "data" top: "label"
      data_param {{ source: "{path}" batch_size: {BATCH} backend: LMDB }}
      transform_param {{ {transform} }} }}
    layer {{ name: "none" type: "Silence" bottom: "data" bottom: "label" }}"""
    return build_net(text, Cuda(graphs=False), phase="TRAIN", seed=4)


def fed(net: Net, batches: int = 14) -> list[np.ndarray]:
    """The crops of what is fed, and its labels."""
    found = crops(net, batches)
    net.layers[0].close()
    return found


def is_mapped(net: Net) -> bool:
    return isinstance(net.layers[0]._source.copier, MappedFile)


@pytest.fixture(autouse=True)
def small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("gpu"):
        simulate(monkeypatch)
        monkeypatch.setattr(mapped_file, "PIECE", 1 << 16)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets CUDA register nothing beyond so many pieces."""

    def refuse(most: int) -> None:
        left = iter(range(most))

        def register(*_: Any) -> None:
            if next(left, None) is None:
                raise RuntimeError("cudaErrorNotSupported")

        monkeypatch.setattr(fake_cupy().cuda.runtime, "hostRegister", register)

    return refuse


def assert_same(path: Path, refused: Any, pieces: int = 1000) -> None:
    refused(pieces)
    net = build(path)
    assert is_mapped(net)
    found = fed(net)
    refused(0)
    net = build(path)
    assert not is_mapped(net)
    np.testing.assert_equal(found, fed(net))


def test_records_are_those_that_the_host_copies(tmp_path: Path, refused: Any) -> None:
    path = write(tmp_path / "lmdb")
    assert_same(path, refused)
    assert_same(path, refused, pieces=3)  # from then on the host does it


def test_records_that_are_not_alike(tmp_path: Path, refused: Any) -> None:
    larger = np.random.default_rng(2).integers(0, 256, (3, SIDE + 9, SIDE + 3), np.uint8)
    assert_same(write(tmp_path / "lmdb", {9: make_datum(larger, 5)}), refused)


def test_a_bad_record_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "lmdb", {9: b"nothing"})
    net = build(path)
    with pytest.raises(UserError, match=f'record "00000009" of {path} cannot be read'):
        fed(net)
    net.layers[0].close()


@pytest.mark.parametrize("known", [False, True])
def test_a_file_that_is_cut_short(tmp_path: Path, known: bool) -> None:
    path = write(tmp_path / "lmdb")
    net = build(path)
    assert is_mapped(net)
    if known:
        fed(net)
    os.truncate(path / "data.mdb", 300_000)
    with pytest.raises(UserError, match="has become shorter while it was read"):
        fed(net)
    net.layers[0].close()


def test_too_little_memory_to_keep_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "lmdb")
    monkeypatch.setattr(mapped_file, "available_memory", lambda: 1_000_000)
    assert not is_mapped(build(path))


def test_small_records_are_gathered_by_the_host() -> None:
    fixtures = Path(__file__).parents[3] / "fixtures" / "formats"
    assert not is_mapped(build(fixtures / "mnist200_lmdb", ""))


@pytest.mark.parametrize("kind", ["alike", "in any order", "over pieces"])
def test_runs_are_the_records(kind: str) -> None:
    random = np.random.default_rng(5)
    file = random.integers(0, 256, 40 << 16, np.uint8)
    nbytes = 5000 if kind != "over pieces" else 60_000
    begins = 16 + np.arange(40) * (nbytes + 3000)
    if kind == "in any order":
        begins = random.permutation(begins)
    wanted = np.stack([file[begin : begin + nbytes] for begin in begins.tolist()])
    found = np.zeros(wanted.size, np.uint8)
    made = runs(begins, nbytes)
    for run in made:
        assert run.begin >> 16 == (run.begin + run.pitch * (run.rows - 1) + run.width - 1) >> 16
        assert run.width <= min(run.pitch, nbytes)
        for row in range(run.rows):
            at, begin = run.at + row * nbytes, run.begin + row * run.pitch
            found[at : at + run.width] = file[begin : begin + run.width]
    np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)
    assert kind != "alike" or len(made) < 15


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "lmdb")
    net = build(path)
    assert is_mapped(net), "CUDA registers no file's mapping here"
    found = fed(net)
    monkeypatch.setattr(mapped_file, "available_memory", lambda: 0)
    np.testing.assert_equal(found, fed(build(path)))
