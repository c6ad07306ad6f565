"""Snapshots: their names and contents, and how they are found, read and written, also in the
background."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...arena import Parameter
from ...errors import UserError, naming, reason
from ...files import check_length
from ...net import Net
from ...proto import (
    BlobProto,
    NetParameter,
    NetWeights,
    SolverParameter,
    SolverState,
    blob_fits,
    blob_shape,
    blob_to_array,
    check_hdf5_names,
    fill_blob,
    find_learned_net,
    read_state,
    read_weights,
    stated_checksum,
    write_state,
    write_weights,
)
from ..observer import Snapshot
from ..process_group import ProcessGroup
from .resume_position import RunPosition

logger = logging.getLogger("osucaffe")


@dataclass
class Restored:
    """A snapshot read from these files; position is None if another Caffe wrote it."""

    path: Path
    state: SolverState
    position: RunPosition | None
    model: Path
    weights: NetWeights

    def history(self, parameters: Sequence[Parameter], solver_type: str) -> list[np.ndarray]:
        """The history of these parameters, one for each of its blobs.

        UserError if it belongs to another net or solver type.
        """
        hint = f" with solver type {solver_type}: it belongs to another net or solver type"
        return self._fitting("history", self.state.history, parameters, hint)

    def buffers(self, parameters: Sequence[Parameter]) -> dict[str, list[np.ndarray]]:
        """What the exchange between ranks kept for these parameters, by name. UserError."""
        hint = ": it belongs to another net"
        return {
            buffer.name: self._fitting(buffer.name, buffer.blob, parameters, hint)
            for buffer in self.state.exchange
        }

    def _fitting(
        self, what: str, blobs: Sequence[BlobProto], parameters: Sequence[Parameter], hint: str
    ) -> list[np.ndarray]:
        if len(blobs) != len(parameters):
            raise UserError(
                f"{self.path}: has {len(blobs)} {what} blobs, but this net needs "
                f"{len(parameters)}{hint}"
            )
        arrays = []
        for blob, parameter in zip(blobs, parameters, strict=True):
            shape = parameter.blob.shape
            if not blob_fits(blob, shape):
                raise UserError(
                    f'{self.path}: the {what} of layer "{parameter.layer}", parameter '
                    f"{parameter.index}, has shape {blob_shape(blob)}, but this net's has {shape}: "
                    "it belongs to another net; go on with the net that it was made with"
                )
            arrays.append(blob_to_array(blob).reshape(shape))
        return arrays


def check_prefix(param: SolverParameter, file: str) -> None:
    """UserError if snapshots are requested without a prefix."""
    if param.snapshot < 0:
        raise UserError(f"{file}: snapshot must not be negative, but is {param.snapshot}")
    if param.snapshot and not param.snapshot_prefix:
        raise UserError(f"{file}: snapshot is set, but snapshot_prefix is not; set it")


def check_net(param: SolverParameter, net: Net, file: str) -> None:
    """UserError now rather than hours later if snapshots of this net cannot be written."""
    if param.snapshot_format == SolverParameter.HDF5:
        with naming(file):
            check_hdf5_names(layer.param for layer in net.layers if layer.parameters)
    check_writable(param, file)


def check_writable(param: SolverParameter, file: str) -> None:
    """UserError if nothing can be written under the prefix."""
    prefix = param.snapshot_prefix
    folder = Path(prefix).parent
    if not prefix:
        raise UserError(f"{file}: set snapshot_prefix, or snapshot_after_train: false")
    if not folder.is_dir():
        raise UserError(f"{file}: the folder of snapshot_prefix {prefix!r} does not exist; make it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{file}: no permission to write snapshots into {folder}")
    last = named(param, max(param.max_iter, 0))
    try:
        for name in last.model, last.state:
            check_length(name)
    except OSError as error:
        shown = prefix if len(prefix) < 80 else f"{prefix[:40]}...{prefix[-20:]}"
        raise UserError(
            f"{file}: snapshot_prefix {shown!r} is too long for the files of a snapshot and their "
            f"temporaries ({reason(error)}); shorten it"
        ) from None


def named(param: SolverParameter, iteration: int) -> Snapshot:
    """The files of the snapshot of an iteration."""
    stem = f"{param.snapshot_prefix}_iter_{iteration}"
    end = ".h5" if param.snapshot_format == SolverParameter.HDF5 else ""
    return Snapshot(iteration, f"{stem}.caffemodel{end}", f"{stem}.solverstate{end}")


def best_model(prefix: str, end: str = "") -> str:
    """The file of the best model of a run. end: ".h5" for HDF5."""
    return f"{prefix}_best.caffemodel{end}"


def contents(
    files: Snapshot,
    net: Net,
    history: Sequence[np.ndarray],
    current_step: int,
    position: RunPosition,
    buffers: Mapping[str, Sequence[np.ndarray]],
    *,
    diff: bool,
) -> tuple[NetParameter, SolverState]:
    """The contents of the snapshot's two files: model (diff: with gradients) and state. They are
    copies: training may go on. buffers: see `ProcessGroup.read_buffers`."""
    state = SolverState(
        iter=files.iteration,
        current_step=current_step,
        learned_net=files.model,
        osucaffe=position.encode(),
    )
    for array in history:
        fill_blob(state.history.add(), array)
    for name, arrays in buffers.items():
        buffer = state.exchange.add(name=name)
        for array in arrays:
            fill_blob(buffer.blob.add(), array)
    return net.to_proto(diff=diff), state


def announce(files: Snapshot) -> None:
    """Log what is about to be written, in one piece: a log that others read is in order."""
    kind = "HDF5" if Path(files.state).suffix == ".h5" else "binary proto"
    logger.info("Snapshotting to %s file %s", kind, files.model)
    logger.info("Snapshotting solver state to %s file %s", kind, files.state)


def write(files: Snapshot, model: NetParameter, state: SolverState) -> None:
    """Write the two files, the model first: a state implies a complete model. UserError."""
    write_weights(files.model, model, checksum=True)
    checksum = stated_checksum(files.model)
    if checksum is not None:  # None: the files are devices, such as /dev/null
        state.model_checksum = checksum
    write_state(files.state, state, checksum=True)


def find(path: str | Path, prefix: str, group: ProcessGroup) -> Restored | None:
    """Read a snapshot by its state; "auto": the newest complete one with this prefix, if any.

    All ranks call it together. UserError if it is damaged or not there.
    """
    restored = None
    if path == "auto":
        restored = None if group.rank else newest(prefix)
        path = group.broadcast_object(restored.path if restored else "")
        if not path:
            logger.info("No snapshot %s_iter_*: training starts from scratch", prefix)
            return None
    logger.info("Restoring previous solver status from %s", path)
    return restored or read(Path(path))


def read(path: Path) -> Restored:
    """Read a snapshot by its state. UserError."""
    state = read_state(path)
    position = RunPosition.decode(state.osucaffe, path) if state.osucaffe else None
    model = find_learned_net(path, state.learned_net)
    stated = stated_checksum(model)
    if state.HasField("model_checksum") and stated not in (None, state.model_checksum):
        raise UserError(
            f"{path}: its model {model} is of another run (its checksum is not the one that the "
            "state names); take an older snapshot, or put the right model next to the state"
        )
    return Restored(path, state, position, model, read_weights(model))


Stamp = tuple[int, int, Path]
"""A state file: its iteration, when it was written (ns), its path."""


def stamps(prefix: str) -> frozenset[Stamp]:
    """The states with this prefix."""
    stem = Path(prefix)
    pattern = re.compile(re.escape(stem.name) + r"_iter_(\d+)\.solverstate(\.h5)?")
    states = set()
    for path in stem.parent.glob("*_iter_*.solverstate*"):
        if match := pattern.fullmatch(path.name):
            states.add((int(match[1]), path.stat().st_mtime_ns, path))
    return frozenset(states)


def listed(prefix: str) -> list[Snapshot]:
    """The snapshots with a state file of this prefix, the oldest first; their models' paths assume
    that they have not been moved."""
    return [
        Snapshot(iteration, _model_of(path), str(path))
        for iteration, _, path in sorted(stamps(prefix))
    ]


def _model_of(state: Path) -> str:
    return str(state.with_name(state.name.replace(".solverstate", ".caffemodel")))


def newest(prefix: str, but: frozenset[Stamp] = frozenset()) -> Restored | None:
    """The newest complete snapshot, except these; damaged ones, and those without their model, are
    skipped with a warning."""
    for _, _, path in sorted(stamps(prefix) - but, reverse=True):
        try:
            return read(path)
        except UserError as error:
            logger.warning("Skipping snapshot %s: %s", path, error)
    return None


class SnapshotWriter:
    """Writes snapshots in the background. Errors are raised by the trainer's next call."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._written: Callable[[], None] = lambda: None

    def start(self, write: Callable[[], None], written: Callable[[], None]) -> None:
        """Start writing, once the previous snapshot is done; `written` is called in the trainer's
        thread, by the first `look` or `wait` after it."""
        self.wait()
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="osucaffe-snapshot")
        self._written = written
        self._writing = self._thread.submit(write)

    def look(self) -> None:
        """Finish what has been written meanwhile. Raises its error, if any."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written. Raises its error, if any."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
            self._written()
