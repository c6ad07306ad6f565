"""Owns snapshots: their names, what they hold, how they are written, read and found again.

A snapshot is a model file and a state file beside it. The state has Caffe's fields and, in one
field of our own, what a resumed run needs to go on bit for bit.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..arena import Parameter
from ..errors import UserError
from ..net import Net
from ..proto import (
    SolverParameter,
    SolverState,
    blob_fits,
    blob_shape,
    blob_to_array,
    fill_blob,
    find_learned_net,
    read_state,
    read_weights,
    write_state,
    write_weights,
)

logger = logging.getLogger("osucaffe")


@dataclass
class NetProgress:
    """How far a net has come: its random step, and the record each of its data layers is at."""

    step: int
    positions: dict[str, int]

    @classmethod
    def of(cls, net: Net) -> NetProgress:
        positions = {
            layer.name: layer.position for layer in net.layers if hasattr(layer, "position")
        }
        return cls(net.random.step, positions)

    def part(self, before: NetProgress, done: int, taken: int) -> NetProgress:
        """Where the net would be had it come only `done` of the `taken` batches since `before`."""
        positions = {
            name: before.positions[name] + (position - before.positions[name]) * done // taken
            for name, position in self.positions.items()
        }
        return NetProgress(self.step, positions)

    def apply(self, net: Net) -> None:
        """Let the net go on from here. Layers that it did not have then keep their place."""
        net.random.step = self.step
        for layer in net.layers:
            if layer.name in self.positions and hasattr(layer, "position"):
                layer.position = self.positions[layer.name]


@dataclass
class Progress:
    """What decides how a run goes on besides weights and history.

    nets: the training net, then the test nets. losses: those that the next display smooths over.
    loss_scale: see `LossScale.read`; None without loss scaling.
    """

    seed: int
    nets: list[NetProgress]
    losses: list[float]
    loss_scale: list[float] | None = None

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes, path: Path) -> Progress:
        try:
            fields = json.loads(content)
            nets = [NetProgress(**each) for each in fields["nets"]]
            losses = [float(loss) for loss in fields["losses"]]
            return cls(int(fields["seed"]), nets, losses, fields.get("loss_scale"))
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{path}: what a resumed run needs cannot be read, the file is damaged; "
                "take an older snapshot"
            ) from None


@dataclass
class Restored:
    """A snapshot that was read: progress is None where another Caffe wrote it."""

    iteration: int
    current_step: int
    history: list[np.ndarray]
    model: Path
    progress: Progress | None


def check_prefix(param: SolverParameter, file: str) -> None:
    """UserError where snapshots are wanted and their prefix is not given."""
    if param.snapshot < 0:
        raise UserError(f"{file}: snapshot must not be negative, but is {param.snapshot}")
    if param.snapshot and not param.snapshot_prefix:
        raise UserError(f"{file}: snapshot is set, but snapshot_prefix is not; set it")


def check_writable(prefix: str, file: str) -> None:
    """UserError now rather than hours later if snapshots cannot be written."""
    folder = Path(prefix).parent
    if not prefix:
        raise UserError(f"{file}: set snapshot_prefix, or snapshot_after_train: false")
    if not folder.is_dir():
        raise UserError(f"{file}: the folder of snapshot_prefix {prefix!r} does not exist; make it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{file}: no permission to write snapshots into {folder}")


def names(prefix: str, iteration: int, hdf5: bool) -> tuple[str, str]:
    """The model file and the state file of a snapshot."""
    stem, end = f"{prefix}_iter_{iteration}", ".h5" if hdf5 else ""
    return f"{stem}.caffemodel{end}", f"{stem}.solverstate{end}"


def write(
    net: Net,
    state: SolverState,
    history: Sequence[np.ndarray],
    progress: Progress,
    param: SolverParameter,
) -> tuple[str, str]:
    """Write model and state, the model first: where a state lies, its model is whole."""
    hdf5 = param.snapshot_format == SolverParameter.HDF5
    model, path = names(param.snapshot_prefix, state.iter, hdf5)
    kind = "HDF5" if hdf5 else "binary proto"
    logger.info("Snapshotting to %s file %s", kind, model)
    write_weights(model, net.to_proto(diff=param.snapshot_diff))
    state.learned_net = model
    for array in history:
        fill_blob(state.history.add(), array)
    state.osucaffe = progress.encode()
    logger.info("Snapshotting solver state to %s file %s", kind, path)
    write_state(path, state)
    return model, path


def read(path: Path, parameters: Sequence[Parameter], solver_type: str) -> Restored:
    """Read a state whose history must be that of these parameters, one for each of its blobs.

    UserError if it is damaged or belongs to another net.
    """
    state = read_state(path)
    if len(state.history) != len(parameters):
        raise UserError(
            f"{path}: has {len(state.history)} history blobs, but this net needs {len(parameters)} "
            f"with solver type {solver_type}: it belongs to another net or solver type"
        )
    history = []
    for blob, parameter in zip(state.history, parameters, strict=True):
        shape = parameter.blob.shape
        if not blob_fits(blob, shape):
            raise UserError(
                f'{path}: the history of layer "{parameter.layer}", parameter {parameter.index}, '
                f"has shape {blob_shape(blob)}, but this net's has {shape}: it belongs to another "
                "net; go on with the net that it was made with"
            )
        history.append(blob_to_array(blob).reshape(shape))
    return Restored(
        iteration=state.iter,
        current_step=state.current_step,
        history=history,
        model=find_learned_net(path, state.learned_net),
        progress=Progress.decode(state.osucaffe, path) if state.osucaffe else None,
    )


def newest(prefix: str) -> Path | None:
    """The state of the newest whole snapshot with this prefix, if there is any.

    One whose state or model is missing or damaged is passed over with a warning.
    """
    stem = Path(prefix)
    pattern = re.compile(re.escape(stem.name) + r"_iter_(\d+)\.solverstate(\.h5)?")
    found = []
    for path in stem.parent.glob("*_iter_*.solverstate*"):
        if match := pattern.fullmatch(path.name):
            found.append((int(match[1]), path.stat().st_mtime_ns, path))
    for _, _, path in sorted(found, reverse=True):
        try:
            read_weights(find_learned_net(path, read_state(path).learned_net))
        except UserError as error:
            logger.warning("Passing over snapshot %s: %s", path, error)
        else:
            return path
    return None
