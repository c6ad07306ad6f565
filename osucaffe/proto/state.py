"""Solver states: the iteration, the update's history and what a bit-exact resume needs."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UserError, naming
from .blobs import blob_to_array, check_blob, fill_blob
from .caffe_pb2 import SolverState
from .files import read_message, write_message
from .hdf5 import Group, is_hdf5, reading_hdf5, write_hdf5

if TYPE_CHECKING:
    import h5py

_WHAT = "solver state (.solverstate or .solverstate.h5)"


def read_state(path: str | Path) -> SolverState:
    """The solver state in a file; binary or HDF5, told by its content. Raises UserError."""
    if is_hdf5(path):
        with reading_hdf5(path, _WHAT) as file:
            return _read_hdf5(file)
    state = read_message(path, SolverState, _WHAT)
    if not state.HasField("iter"):
        raise UserError(f"{path}: states no iteration, so it is not a {_WHAT}")
    kept = {f"history {i}": blob for i, blob in enumerate(state.history)}
    for buffer in state.exchange:
        kept |= {f"{buffer.name} {i}": blob for i, blob in enumerate(buffer.blob)}
    for name, blob in kept.items():
        with naming(f"{path}: {name}"):
            check_blob(blob)
    return state


def write_state(path: str | Path, state: SolverState, *, checksum: bool = False) -> None:
    """Write a solver state, whole or not at all: HDF5 if the name ends in .h5. Raises UserError.

    checksum: with one, which the reader checks; other programs do not see it.
    """
    if Path(path).suffix == ".h5":
        write_hdf5(path, partial(_write_hdf5, state=state), checksum=checksum)
    else:
        write_message(path, state, checksum=checksum)


def find_learned_net(state_path: str | Path, learned_net: str | bytes) -> Path:
    """The model file that a state names: relative to where training ran, or beside the state.

    Raises UserError when it is in neither place.
    """
    if not learned_net:
        raise UserError(f"{state_path}: names no model file, so it cannot be resumed from")
    learned_net = os.fsdecode(learned_net)  # bytes where it is not UTF-8
    if "\0" in learned_net:
        raise UserError(f"{state_path}: names no model file that there can be; it is damaged")
    named = Path(learned_net)
    beside = Path(state_path).parent / named.name
    for candidate in (named, beside):
        if candidate.is_file():
            return candidate
    raise UserError(
        f'{state_path}: its model file "{learned_net}" is not there, and not at {beside}: '
        "put it next to the state"
    )


def _read_hdf5(file: Group) -> SolverState:
    state = SolverState(
        iter=int(file.array("iter")[0]),
        current_step=int(file.array("current_step")[0]),
    )
    if "learned_net" in file:
        state.learned_net = file.array("learned_net").decode()
    history = file["history"]
    if not isinstance(history, Group):
        raise ValueError("its history is not a group")
    for i in range(len(history)):
        fill_blob(state.history.add(), history.array(str(i)))
    exchange = file.get("exchange")
    for name, blobs in exchange.items() if isinstance(exchange, Group) else ():
        if not isinstance(blobs, Group):
            raise ValueError(f"its exchange/{name} is not a group")
        buffer = state.exchange.add(name=name)
        for i in range(len(blobs)):
            fill_blob(buffer.blob.add(), blobs.array(str(i)))
    if "osucaffe" in file:
        state.osucaffe = file.array("osucaffe").tobytes()
    if "model_checksum" in file:
        state.model_checksum = int(file.array("model_checksum")[0])
    return state


def _write_hdf5(file: h5py.File, state: SolverState) -> None:
    file["iter"] = np.array([state.iter], np.int32)
    _write_string(file, "learned_net", state.learned_net)
    file["current_step"] = np.array([state.current_step], np.int32)
    history = file.create_group("history")
    for i, blob in enumerate(state.history):
        history[str(i)] = blob_to_array(blob)
    for buffer in state.exchange:
        for i, blob in enumerate(buffer.blob):
            file[f"exchange/{buffer.name}/{i}"] = blob_to_array(blob)
    if state.HasField("osucaffe"):
        file["osucaffe"] = np.frombuffer(state.osucaffe, np.uint8)
    if state.HasField("model_checksum"):
        file["model_checksum"] = np.array([state.model_checksum], np.uint32)


def _write_string(file: h5py.File, name: str, text: str) -> None:
    """As Caffe does: of fixed length, with a zero byte at the end, which h5py leaves out."""
    from h5py import h5d, h5s, h5t

    content = text.encode() + b"\0"
    kind = h5t.C_S1.copy()
    kind.set_size(len(content))
    dataset = h5d.create(file.id, name.encode(), kind, h5s.create(h5s.SCALAR))
    dataset.write(h5s.ALL, h5s.ALL, np.array(content, f"S{len(content)}"), kind)
