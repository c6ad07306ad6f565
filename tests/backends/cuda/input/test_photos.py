"""Photos that a GPU scales: the pixels of the CPU's way, from the kernel run on the CPU, and on a
GPU."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import simplejpeg

from osucaffe.apps.photographs import classify_input
from osucaffe.apps.photographs.classify_input import FileInput, ImageFiles
from osucaffe.backends.cuda import Cuda
from osucaffe.data.ahead.parallel_map import BadRecords
from osucaffe.pycaffe.image_input import ImageInput

from ..executed import execute
from ..simulated import simulate

SIZES = ((375, 500), (41, 3), (13, 700), (12, 14), (5, 7), (1, 1), (1, 30), (12, 1), (600, 11))
"""Heights and widths: larger than what they are scaled to, smaller, both, equal."""
LARGE = ((375, 500), (500, 375), (256, 256), (2000, 1500), (99, 301), (1, 1), (32, 32), (480, 128))


def make_input(inner: tuple[int, int], outer: tuple[int, int], channels: int, mean: Any) -> Any:
    """How images enter a net of this input."""
    shape = (1, channels, *inner)
    blob = SimpleNamespace(data=SimpleNamespace(shape=shape))
    net: Any = SimpleNamespace(inputs=["data"], blobs={"data": blob})
    swap = (2, 0, 1) if channels == 3 else None
    settings = ImageInput(net, mean=mean, input_scale=0.5, raw_scale=255, channel_swap=swap)
    return FileInput(settings, outer)


def write_photos(folder: Path, sizes: tuple[tuple[int, int], ...], *, gray: bool) -> list[str]:
    random = np.random.default_rng(0)
    for number, size in enumerate(sizes):
        is_gray = gray and number % 2 == 0
        image = random.integers(0, 256, (*size, 1 if is_gray else 3), np.uint8)
        content = simplejpeg.encode_jpeg(image, colorspace="GRAY" if is_gray else "RGB")
        (folder / f"{number:02}.jpg").write_bytes(content)
    return sorted(map(str, folder.iterdir()))


def assert_as_on_cpu(
    backend: Cuda, entry: FileInput, paths: list[str], *, oversample: bool
) -> None:
    """Each input is within a level of the CPU's (0.5 of them, by the scale)."""
    parts, batch = 10 if oversample else 1, 3
    expected = np.stack([entry.enter(path, oversample) for path in paths])
    shape = (batch, parts, *expected.shape[2:])
    stream = ImageFiles(paths, entry, BadRecords(), oversample=oversample).stream(shape, 2, backend)
    try:
        found = []
        for _ in range(-(-len(paths) // batch)):
            scaled = stream.next()[0].flat
            backend.upload_stream.synchronize()
            found.append(scaled.get().reshape(shape))
    finally:
        stream.close()
    assert np.ptp(expected) > 50
    np.testing.assert_allclose(np.concatenate(found)[: len(paths)], expected, rtol=0, atol=0.001)


@pytest.fixture
def lockstep(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")
    simulate(monkeypatch)
    execute(monkeypatch)
    return Cuda(precision="fp32")


@pytest.mark.parametrize("oversample", [False, True], ids=["middle", "ten parts"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_are_those_of_the_cpu(
    channels: int, oversample: bool, lockstep: Cuda, tmp_path: Path
) -> None:
    mean = np.random.default_rng(1).uniform(90, 130, (channels, 9, 10))
    entry = make_input((9, 10), (12, 14), channels, mean)
    paths = write_photos(tmp_path, SIZES, gray=True)
    assert_as_on_cpu(lockstep, entry, paths, oversample=oversample)


def test_too_large_photos_are_scaled_by_the_host(
    lockstep: Cuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To whole levels: of 0.5 each."""
    monkeypatch.setattr(classify_input, "_BATCH_BYTES", 1 << 14)
    entry = make_input((9, 10), (12, 14), 3, np.array([104, 117, 123]))
    (path,) = write_photos(tmp_path, ((90, 100),), gray=False)
    expected = entry.enter(path, False)
    stream = ImageFiles([path], entry, BadRecords(), oversample=False).stream(
        (3, 1, 3, 9, 10), 1, lockstep
    )
    found = stream.next()[0].flat.get().reshape(3, 3, 9, 10)[:1]
    stream.close()
    assert 0.05 < np.abs(found - expected).max() < 0.26


def test_a_photo_that_is_left_out(lockstep: Cuda, tmp_path: Path) -> None:
    entry = make_input((9, 10), (12, 14), 3, np.array([104, 117, 123]))
    paths = write_photos(tmp_path, ((20, 30), (30, 20)), gray=False)
    expected = entry.enter(paths[1], False)
    Path(paths[0]).write_bytes(b"no image")
    files = ImageFiles(paths, entry, BadRecords(skip=True), oversample=False)
    with contextlib.closing(files.stream((2, 1, 3, 9, 10), 1, lockstep)) as stream:
        scaled = stream.next()[0].flat.get().reshape(2, 1, 3, 9, 10)
    assert files.bad.skipped == {0}
    np.testing.assert_allclose(scaled[1], expected, rtol=0, atol=0.001)


def test_the_kernel_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By NVRTC, and takes the arguments that it is launched with."""
    simulate(monkeypatch)
    paths = write_photos(tmp_path, ((20, 30),), gray=False)
    for channels in 1, 3:
        entry = make_input((9, 10), (12, 14), channels, None)
        shape = (2, 1, channels, 9, 10)
        stream = ImageFiles(paths, entry, BadRecords(), oversample=False).stream(shape, 1, Cuda())
        assert stream.next()[0].flat.size == 2 * channels * 90
        stream.close()


@pytest.mark.gpu
@pytest.mark.parametrize("oversample", [False, True], ids=["middle", "ten parts"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_of_real_sizes_on_a_gpu(channels: int, oversample: bool, tmp_path: Path) -> None:
    entry = make_input((227, 200), (256, 256), channels, np.linspace(90, 130, channels))
    paths = write_photos(tmp_path, LARGE, gray=True)
    assert_as_on_cpu(Cuda(), entry, paths, oversample=oversample)
