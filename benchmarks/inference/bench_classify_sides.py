"""What bench_classify times: photos in files, readers that only decode them, the command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import simplejpeg

from osucaffe.api.images import load_image
from osucaffe.backends.cores import usable_cores
from osucaffe.data.ahead.pipeline import Pipeline
from osucaffe.data.ahead.processes import Processes

HEIGHT, WIDTH, QUALITY = 375, 500, 80
_BATCH, _PICTURES = 64, 40
_ON_THE_HOST = (
    "import sys; from osucaffe.backends.cuda import Cuda; from osucaffe.cli import main;"
    "Cuda.photo_scaler = lambda *_: None; sys.exit(main())"
)
_FIRST = re.compile(r"First two batches, with preparation: ([\d.]+) s")
_ALL = re.compile(r"All \d+ images: ([\d.]+) s")


def write_photos(folder: Path, count: int) -> float:
    """Write so many different JPEGs, whose spectrum falls with the frequency as that of photographs
    does. Returns their mean size in bytes."""
    folder.mkdir()
    generator = np.random.default_rng(1)
    rows, columns = np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None]
    frequency = np.maximum(np.hypot(rows, columns), 1 / WIDTH)
    pictures, total = [], 0
    for _ in range(_PICTURES):
        grey, *colours = np.fft.rfft2(generator.normal(size=(4, HEIGHT, WIDTH))) / frequency
        planes = np.fft.irfft2(
            np.stack([grey + 0.4 * colour for colour in colours]), (HEIGHT, WIDTH)
        )
        planes = 118 + 55 * (planes - planes.mean()) / planes.std()
        pictures.append(planes.clip(0, 255).transpose(1, 2, 0).astype(np.uint8))
    for number in range(count):
        image = np.roll(pictures[number % _PICTURES], 8 * (number // _PICTURES), axis=1)
        content = simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=QUALITY)
        (folder / f"{number:05}.jpg").write_bytes(content)
        total += len(content)
    return total / count


class Decoding:
    """Files that are read and decoded, and no more."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def fill(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """For each the sum of its extents."""
        (sums,) = arrays
        for at, path in enumerate(self._paths[position : position + len(sums)]):
            sums[at] = sum(load_image(path).shape)


def decode(paths: Sequence[str]) -> dict[str, float]:
    """Images per second of as many reader processes as `classify` has, that only decode."""
    batches = -(-len(paths) // _BATCH)
    pipeline = Pipeline(
        Decoding(paths).fill, [(_BATCH,)], depth=4, threads=usable_cores(), workers=Processes
    )
    start = time.perf_counter()
    for number in range(batches):
        (sums,) = pipeline.next()
        if number == 0:
            assert sums.array[0] == HEIGHT + WIDTH + 3
        if number == 1:
            begun = time.perf_counter()
    end = time.perf_counter()
    pipeline.close()
    return _rates(len(paths), begun - start, end - start)


def _rates(count: int, first: float, total: float) -> dict[str, float]:
    return {
        "all": round(count / total),
        "after the first two batches": round((count - 2 * _BATCH) / (total - first)),
    }


def classify(
    model: Sequence[str], folders: Sequence[str], count: int, *, on_host: bool
) -> dict[str, float]:
    """Images per second of the command, by its log. on_host: as if no GPU scaled photos."""
    program = ["-c", _ON_THE_HOST] if on_host else ["-m", "osucaffe"]
    command = [sys.executable, *program, "classify", *model, *folders]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    seconds = time.perf_counter() - start
    first, total = _FIRST.search(done.stderr), _ALL.search(done.stderr)
    if done.returncode or not first or not total:
        raise RuntimeError(done.stderr)
    assert done.stdout.count(".jpg\n") == count
    return {
        **_rates(count, float(first[1]), float(total[1])),
        "seconds with start": round(seconds, 2),
    }
