"""`osucaffe extract_features`: the values of blobs for a net's data become LMDBs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...comm.job.job import Job
from ...data.databases.database import write_database
from ...errors import UserError
from ...proto import Datum
from .. import loading
from . import sharding
from .options import ExtractFeatures


def run(options: ExtractFeatures) -> None:
    """Run the net and write its blobs."""
    if len(options.blobs) != len(options.databases):
        given = f"{len(options.blobs)} blobs and {len(options.databases)} databases"
        raise UserError(f"{given} are named: give one database for each blob")
    with sharding.joined(options) as (device, job):
        _extract(replace(options, device=device), job)


def _extract(options: ExtractFeatures, job: Job) -> None:
    net = loading.load_net(options, reads=True, phase="TEST", inference=True, wanted=options.blobs)
    for name in options.blobs:
        if not net.blobs[name].shape:
            raise UserError(f'blob "{name}" is one number for a batch, not something for each item')
    sharding.split(net, job)

    def features(_: int) -> list[np.ndarray]:
        net.forward()
        return [net.read(name) for name in options.blobs]

    writers = [_Writer(path) for path in options.databases if not job.rank]
    try:
        for batch in sharding.in_turn(job, options.batches, features):
            for writer, values in zip(writers, batch, strict=True):
                writer.put(values)
        counts = [writer.finish() for writer in writers]
    finally:
        for writer in writers:
            writer.abandon()
    for name, writer, count in zip(options.blobs, writers, counts, strict=False):
        print(f"wrote {writer.path}: {count} x {name}")


class _Writer:
    """Writes one LMDB in a separate thread, so that several are written in parallel."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.count = 0
        self.error: BaseException | None = None
        self._queue: queue.Queue[np.ndarray | None] = queue.Queue(maxsize=2)
        self._whole = False
        self._ended = False
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def put(self, features: np.ndarray) -> None:
        """Add a batch. Raises the error of a failed write."""
        if self.error is not None:
            raise self.error
        self._queue.put(features)

    def finish(self) -> int:
        """Wait until all is written; returns the number of records."""
        self._whole = True
        self.abandon()
        if self.error is not None:
            raise self.error
        return self.count

    def abandon(self) -> None:
        """End the thread; without `finish` no database remains."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _write(self) -> None:
        try:
            self.count = write_database(self.path, self._records())
        except _Abandoned:
            pass
        except BaseException as error:
            self.error = error
            # Nobody shall wait for a place in the queue.
            while not self._ended and self._queue.get() is not None:
                pass

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        index = 0
        while (batch := self._queue.get()) is not None:
            items = batch.reshape(*batch.shape, *[1] * (4 - batch.ndim))
            items = items.reshape(*items.shape[:3], -1)  # more axes than Datum knows: as width
            channels, height, width = items.shape[1:]
            head = Datum(channels=channels, height=height, width=width).SerializeToString()
            for item in items:
                yield b"%010d" % index, head + _float_data(item)
                index += 1
        self._ended = True
        if not self._whole:
            raise _Abandoned


def _float_data(values: np.ndarray) -> bytes:
    """Values in protobuf's encoding of float_data: each after the field's number and type."""
    fields = np.empty(values.size, [("tag", np.uint8), ("value", "<f4")])
    fields["tag"] = 6 << 3 | 5
    fields["value"] = values.ravel()
    return fields.tobytes()


class _Abandoned(Exception):
    """The run failed: the database must be discarded."""
