"""Extract features: write blobs that a net computes for its data to LMDBs.

  osucaffe extract_features trained.caffemodel net.prototxt fc7,prob fc7_lmdb,prob_lmdb 50

The net reads its own data (by a Data layer, say) and runs in its TEST phase, here for 50 batches.
Record i, a Datum of floats under a key of ten digits, is what the blob holds for item i. As in
Caffe, the kind of database (lmdb), CPU or GPU, and the GPU's number may follow."""

from __future__ import annotations

import argparse
import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import options
from . import sharding

if TYPE_CHECKING:
    import numpy as np

    from ...comm.job.job import Job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("weights", metavar="WEIGHTS", help="the trained model")
    parser.add_argument("model", metavar="NET", help="the net's prototxt")
    parser.add_argument(
        "blobs", metavar="BLOBS", type=options.names, help="names of blobs, separated by commas"
    )
    parser.add_argument(
        "databases", metavar="LMDBS", type=options.names, help="an LMDB to write for each blob"
    )
    parser.add_argument(
        "batches", metavar="BATCHES", type=options.positive, help="how many batches to run"
    )
    parser.add_argument(
        "kind", metavar="lmdb", nargs="?", choices=("lmdb",), help="the kind of database"
    )
    parser.add_argument(
        "device", metavar="CPU|GPU", nargs="?", choices=("CPU", "GPU"), help="where it runs"
    )
    parser.add_argument(
        "device_id", metavar="DEVICE_ID", nargs="?", help="the number of the GPU (0 by default)"
    )
    options.add_strict(parser)
    options.add_state(parser)
    sharding.add_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Run the net and write its blobs."""
    from ...errors import UserError

    if len(args.blobs) != len(args.databases):
        given = f"{len(args.blobs)} blobs and {len(args.databases)} databases"
        raise UserError(f"{given} are named: give one database for each blob")
    if args.device == "GPU" and args.gpu is None:
        args.gpu = (args.device_id or "0").removeprefix("DEVICE_ID=")
    with sharding.joined(args) as (args, job):
        _extract(args, job)


def _extract(args: argparse.Namespace, job: Job) -> None:
    from ...errors import UserError, naming
    from ...net import Net
    from ...proto import read_net

    models = options.read_weights([args.weights])
    with naming(args.model):
        net = Net(
            read_net(args.model),
            phase="TEST",
            backend=options.make_backend(args),
            level=args.level,
            stages=args.stage,
            inference=True,
            wanted=args.blobs,
        )
    options.check_fed(net, args.model)
    for name in args.blobs:
        if not net.blobs[name].shape:
            raise UserError(f'blob "{name}" is one number for a batch, not something for each item')
    options.compare_preprocessing(net, args.model, models)
    options.load_weights(net, models, args)
    sharding.split(net, job)

    def features(_: int) -> list[np.ndarray]:
        net.forward()
        return [net.read(name) for name in args.blobs]

    writers = [_Writer(path) for path in args.databases if not job.rank]
    try:
        for batch in sharding.in_turn(job, args.batches, features):
            for writer, values in zip(writers, batch, strict=True):
                writer.put(values)
        counts = [writer.finish() for writer in writers]
    finally:
        for writer in writers:
            writer.abandon()
    for name, writer, count in zip(args.blobs, writers, counts, strict=False):
        print(f"wrote {writer.path}: {count} x {name}")


class _Writer:
    """Writes one LMDB in a thread of its own, so that several grow beside one another."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.count = 0
        self.error: BaseException | None = None
        self._waiting: queue.Queue[np.ndarray | None] = queue.Queue(maxsize=2)
        self._whole = False
        self._ended = False
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def put(self, features: np.ndarray) -> None:
        """Add a batch. Raises what made writing fail."""
        if self.error is not None:
            raise self.error
        self._waiting.put(features)

    def finish(self) -> int:
        """Wait until all is written; returns the number of records."""
        self._whole = True
        self.abandon()
        if self.error is not None:
            raise self.error
        return self.count

    def abandon(self) -> None:
        """End the thread; without `finish` no database is left behind."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()

    def _write(self) -> None:
        from ...data.databases.database import write_database

        try:
            self.count = write_database(self.path, self._records())
        except _Abandoned:
            pass
        except BaseException as error:
            self.error = error
            # Nobody shall wait for a place in the queue.
            while not self._ended and self._waiting.get() is not None:
                pass

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        from ...proto import Datum

        index = 0
        while (batch := self._waiting.get()) is not None:
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
    """Values as protobuf writes Datum's float_data: each behind the field's number and type."""
    import numpy as np

    fields = np.empty(values.size, [("tag", np.uint8), ("value", "<f4")])
    fields["tag"] = 6 << 3 | 5
    fields["value"] = values.ravel()
    return fields.tobytes()


class _Abandoned(Exception):
    """The run failed: the database is not to be kept."""
