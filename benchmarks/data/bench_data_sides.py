"""What bench_data compares: databases, osucaffe's readers, PyTorch's DataLoader, limits."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import simplejpeg
from google.protobuf import text_format

from osucaffe.backends.cpu import Cpu
from osucaffe.data.config import DataConfig
from osucaffe.data.databases.database import open_database, record_key, write_database
from osucaffe.data.databases.datum import make_datum, parse_datum
from osucaffe.data.sets.convert import encode_image
from osucaffe.net import Net
from osucaffe.proto import caffe_pb2

SIDE, CROP, BATCH = 256, 227, 256
MEAN = (104.0, 117.0, 123.0)
PICTURES = 64
TRANSFORM = f"crop_size: {CROP} mirror: true " + " ".join(f"mean_value: {m:g}" for m in MEAN)


def pictures() -> list[np.ndarray]:
    """Images (SIDE, SIDE, 3) whose spectrum falls with the frequency, as that of photographs."""
    generator = np.random.default_rng(1)
    rows, columns = np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE)[None]
    frequency = np.maximum(np.hypot(rows, columns), 1 / SIDE)
    found = []
    for _ in range(PICTURES):
        grey, *colours = np.fft.rfft2(generator.normal(size=(4, SIDE, SIDE))) / frequency
        planes = np.fft.irfft2(np.stack([grey + 0.4 * colour for colour in colours]))
        planes = 118 + 55 * (planes - planes.mean()) / planes.std()
        found.append(np.ascontiguousarray(planes.clip(0, 255).transpose(1, 2, 0).astype(np.uint8)))
    return found


def write_databases(folder: Path, raw: int, jpeg: int) -> dict[str, Path]:
    """LMDBs of so many raw and JPEG-encoded records, as convert_imageset makes them."""
    images = pictures()

    def raw_records() -> Iterator[tuple[bytes, bytes]]:
        for i in range(raw):
            planes = np.roll(images[i % PICTURES], i, axis=1).transpose(2, 0, 1)
            yield record_key(i, f"{i}.jpg"), make_datum(planes, i % 1000, encoded=False)

    encoded = [encode_image(image, "jpg") for image in images]
    paths = {"raw": folder / "raw_lmdb", "JPEG": folder / "jpeg_lmdb"}
    write_database(paths["raw"], raw_records(), batch=100)
    write_database(
        paths["JPEG"],
        (
            (
                record_key(i, f"{i}.jpg"),
                caffe_pb2.Datum(
                    data=encoded[i % PICTURES], label=i % 1000, encoded=True
                ).SerializeToString(),
            )
            for i in range(jpeg)
        ),
    )
    return paths


class Osucaffe:
    """Batches of a Data layer: floats as the CPU backend wants them, or bytes as a GPU does."""

    def __init__(self, path: Path, readers: int, *, as_bytes: bool) -> None:
        backend = Cpu(threads=1)
        backend.raw_records = as_bytes
        text = f"""layer {{ name: "data" type: "Data" top: "data" top: "label"
            data_param {{ source: "{path}" batch_size: {BATCH} backend: LMDB }}
            transform_param {{ {TRANSFORM} }} }}
        layer {{ type: "Silence" name: "none" bottom: "data" bottom: "label" }}"""
        param = text_format.Parse(text, caffe_pb2.NetParameter())
        net = Net(param, backend=backend, seed=1, data_config=DataConfig(readers=readers))
        self.layer: Any = net.layers[0]
        self._position = 0

    def batches(self, count: int) -> Iterator[Any]:
        """So many batches, made ahead from now on."""
        self.layer.position = self._position
        for _ in range(count):
            yield self.layer.next()
        self._position = self.layer.position
        self.layer.position = self._position  # nothing is made any more

    def close(self) -> None:
        self.layer.close()


class _Records:
    """A data set as PyTorch's users write it: LMDB, protobuf, simplejpeg and NumPy.

    as_bytes: gives the crops as bytes, from which a GPU subtracts the mean.
    """

    def __init__(self, path: Path, *, as_bytes: bool) -> None:
        self._path, self._as_bytes = path, as_bytes
        self._environment: Any = None
        self._mean = np.array(MEAN, np.float32)[:, None, None]

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch

        if self._environment is None:  # each worker opens its own
            self._environment = lmdb.open(str(self._path), readonly=True, lock=False)
            with self._environment.begin() as transaction:
                self._keys = list(transaction.cursor().iternext(values=False))
            self._random = np.random.default_rng(index)
        with self._environment.begin(buffers=True) as transaction:
            datum = caffe_pb2.Datum.FromString(transaction.get(self._keys[index % len(self._keys)]))
        if datum.encoded:
            image = simplejpeg.decode_jpeg(datum.data, colorspace="BGR").transpose(2, 0, 1)
        else:
            shape = (datum.channels, datum.height, datum.width)
            image = np.frombuffer(datum.data, np.uint8).reshape(shape)
        top, left, mirror = self._random.integers((SIDE - CROP + 1, SIDE - CROP + 1, 2)).tolist()
        crop = image[:, top : top + CROP, left : left + CROP]
        if self._as_bytes:
            return torch.from_numpy(np.ascontiguousarray(crop[:, :, :: -1 if mirror else 1])), (
                datum.label
            )
        out = np.empty((3, CROP, CROP), np.float32)
        np.subtract(crop[:, :, ::-1] if mirror else crop, self._mean, out=out)
        return torch.from_numpy(out), datum.label


class Loader:
    """Batches of PyTorch's DataLoader, whose workers are processes; pinned: ready to upload.
    as_bytes: as a careful user has them.

    The workers start at once, as forks of this process: it must not have the LMDB open yet.
    """

    def __init__(self, path: Path, workers: int, *, pinned: bool, as_bytes: bool = False) -> None:
        from torch.utils.data import DataLoader

        self._start = 0
        self._span: range = range(0)
        self._loader = DataLoader(
            _Records(path, as_bytes=as_bytes),
            batch_sampler=self,
            num_workers=workers,
            persistent_workers=True,
            pin_memory=pinned,
        )
        list(self.batches(workers))

    def __iter__(self) -> Iterator[list[int]]:
        """The indices of each batch: what the DataLoader asks its sampler for."""
        for start in self._span:
            yield list(range(start, start + BATCH))

    def batches(self, count: int) -> Iterator[Any]:
        """So many batches; nothing is left under way afterwards."""
        self._span = range(self._start, self._start + count * BATCH, BATCH)
        self._start = self._span.stop
        yield from self._loader

    def close(self) -> None:
        del self._loader


def images_per_second(side: Osucaffe | Loader, workers: int) -> float:
    """The rate of `workers` that are all at work: the first and the last batches do not count."""
    count = max(2 * workers, 4)
    start = seconds = 0.0
    for number, _ in enumerate(side.batches(workers + count + workers), 1):
        if number == workers:
            start = time.perf_counter()
        elif number == workers + count:
            seconds = time.perf_counter() - start
    return count * BATCH / seconds


def decode_rate(path: Path, threads: int) -> float:
    """Images per second of threads that only decode the records' JPEGs, from memory."""
    images = _jpegs(path)

    def decode() -> int:
        out = np.empty((SIDE, SIDE, 3), np.uint8)
        for image in images:
            simplejpeg.decode_jpeg(image, colorspace="BGR", buffer=out)
        return len(images)

    return _rate(decode, threads)


def store_rate(path: Path | None, threads: int) -> float:
    """Images per second of threads that store as many floats as a crop has, in a batch; with a
    path, each behind decoding one of the records' JPEGs."""
    images = _jpegs(path) if path else [b""] * PICTURES
    batches = [np.ones((BATCH, 3, CROP, CROP), np.float32) for _ in range(threads)]
    local = threading.local()

    def store() -> int:
        if not hasattr(local, "rows"):
            local.rows = itertools.cycle(batches.pop())
            local.out = np.empty((SIDE, SIDE, 3), np.uint8)
        for image, row in zip(images, local.rows, strict=False):
            if image:
                simplejpeg.decode_jpeg(image, colorspace="BGR", buffer=local.out)
            row[...] = 2
        return len(images)

    return _rate(store, threads)


def _jpegs(path: Path) -> list[bytes]:
    records = open_database(path).read(0, PICTURES)
    return [bytes(parse_datum(value).data) for _, value in records]


def copy_rate(threads: int) -> float:
    """Bytes per second that threads copy in memory, larger than the caches."""
    source, target = (np.ones((threads, 1 << 27), np.uint8) for _ in range(2))
    turns = iter(range(1 << 30))

    def copy() -> int:
        row = next(turns) % threads
        np.copyto(target[row], source[row])
        return source.shape[1]

    return _rate(copy, threads)


def _rate(work: Callable[[], int], threads: int) -> float:
    """What `work` returns, summed over threads that do it all the time, per second."""
    with ThreadPoolExecutor(threads) as pool:

        def run(until: float) -> int:
            done = 0
            while time.perf_counter() < until:
                done += work()
            return done

        list(pool.map(run, [time.perf_counter() + 0.1] * threads))
        start = time.perf_counter()
        done = sum(pool.map(run, [start + 0.4] * threads))
        return done / (time.perf_counter() - start)
