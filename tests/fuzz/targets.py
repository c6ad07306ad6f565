"""Owns what is done with an input of each kind: what the program does with it, in this process.

An input is good (it ran) or refused (UserError, which is one message); whatever else is raised is a
failure.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import os
import pkgutil
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from PIL import Image

from osucaffe import cli
from osucaffe.backends.cpu import Cpu
from osucaffe.cli.launch import restarts
from osucaffe.cli.score import device_rates
from osucaffe.data.databases.database import open_database
from osucaffe.data.pictures.image import read_image
from osucaffe.data.pictures.transform import Transform
from osucaffe.data.sets.cifar import read_batch
from osucaffe.data.streams.hdf5 import Hdf5Source
from osucaffe.data.streams.image_list import read_list
from osucaffe.data.streams.source import DatumSource
from osucaffe.data.streams.windows import read_windows
from osucaffe.errors import UserError
from osucaffe.graph.flops import flops
from osucaffe.net import Net
from osucaffe.proto import (
    NetParameter,
    SolverParameter,
    parse_text,
    read_mean,
    read_net,
    read_solver,
    read_state,
    read_weights,
    write_mean,
    write_state,
    write_weights,
)
from osucaffe.proto.caffe_pb2 import TransformationParameter
from osucaffe.solvers import Solver

from .inputs import SOLVER_NET

_MOST_WORK = 1 << 26
"""Operations, and elements of blobs: nets that ask for more are built, but not run."""


_LATER = (
    *(
        "h5py",
        "runpy",
        "osucaffe.backends.cuda.backend",
        "osucaffe.comm.job.job",
        "osucaffe.pycaffe",
    ),
    *("osucaffe.data.sets.convert", "osucaffe.data.sets.mnist", "osucaffe.export.model"),
    *(module.name for module in pkgutil.walk_packages(cli.__path__, "osucaffe.cli.")),
)
"""What inputs import that this module does not."""
_corpus: list[Path] = []
"""The folder of the files that command lines name."""
_moments = itertools.count(1)
_copied: list[dict[str, tuple[int, int]]] = []
"""How the copy of it lay there at first: it is copied anew when a command has changed it."""


def prepare(folder: Path) -> None:
    """Write the files that inputs are made of, or name."""
    _corpus[:] = [folder]
    net = parse_text(SOLVER_NET, NetParameter)
    (folder / "n.prototxt").write_text(SOLVER_NET)
    for form, ending in ("BINARYPROTO", ""), ("HDF5", ".h5"):
        text = (
            'base_lr: 0.1 lr_policy: "fixed" max_iter: 1 random_seed: 1 momentum: 0.9 '
            f'snapshot_prefix: "{folder}/f" snapshot_format: {form}'
        )
        param = parse_text(text, SolverParameter)
        param.net_param.CopyFrom(net)
        solver = Solver(param, _backend())
        solver.step(1)
        solver.snapshot()
        solver.close()
        model = folder / f"f_iter_1.caffemodel{ending}"  # which the state names
        # Without the checksums, by which all damage would be told.
        write_weights(folder / f"w.caffemodel{ending}", read_weights(model))
        state = read_state(folder / f"f_iter_1.solverstate{ending}")
        state.ClearField("model_checksum")
        write_state(folder / f"s.solverstate{ending}", state)
    (folder / "s.prototxt").write_text(
        'net: "n.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1 snapshot_after_train: false'
    )
    write_mean(folder / "m.binaryproto", np.ones((3, 4, 4), np.float32))


@lru_cache
def _backend() -> Cpu:
    return Cpu(threads=1)


def _written(name: str) -> Callable[[Callable[[Path], Any]], Callable[[bytes, Path], Any]]:
    """A target that takes the input as a file of this name."""

    def wrap(target: Callable[[Path], Any]) -> Callable[[bytes, Path], Any]:
        def run(content: bytes, folder: Path) -> None:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            os.utime(path, ns=(0, next(_moments)))  # it is another file than any before
            target(path)

        return run

    return wrap


@_written("net.prototxt")
def _net(path: Path) -> None:
    param = read_net(path)
    for phase in "TRAIN", "TEST":
        net = Net(param, phase=phase, backend=_backend(), seed=1, gradients=True)
        work = sum(flops(call) for program in net.programs for call in program)
        if work + sum(blob.data.size for blob in net.blobs.values()) <= _MOST_WORK:
            net.forward()
            net.backward()
            net.loss()


@_written("solver.prototxt")
def _solver(path: Path) -> None:
    param = read_solver(path)
    if not param.HasField("net_param"):
        param.net_param.CopyFrom(parse_text(SOLVER_NET, NetParameter))
    param.snapshot_after_train = False
    if param.test_iter or param.iter_size > 99 or param.max_iter > 99:
        param.max_iter = 0  # long, not wrong
    solver = Solver(param, _backend())
    with contextlib.closing(solver):
        solver.step(min(param.max_iter, 4))


@lru_cache
def _trained() -> Net:
    return Net(parse_text(SOLVER_NET, NetParameter), phase="TRAIN", backend=_backend(), seed=1)


def _weights(path: Path) -> None:
    net = read_weights(path)
    with contextlib.suppress(UserError):
        _trained().load(net)


@lru_cache
def _solver_at_rest() -> Solver:
    param = parse_text('base_lr: 0.1 lr_policy: "fixed" momentum: 0.9', SolverParameter)
    param.net_param.CopyFrom(parse_text(SOLVER_NET, NetParameter))
    return Solver(param, _backend())


def _state(path: Path) -> None:
    _solver_at_rest().restore(path)


def _fail(field: str, text: str) -> NoReturn:
    raise UserError(f"{field}: {text}")


def _read_all(path: Path) -> None:
    source = DatumSource(open_database(path), Transform(TransformationParameter(), "TEST", _fail))
    data = np.empty((4, *source.shape), np.float32)
    for start in range(0, min(len(source), 16), 4):
        source.fill(start, [data, np.empty(4, np.float32)])


@_written("db/data.mdb")
def _lmdb(path: Path) -> None:
    database = open_database(path.parent)
    database.value(len(database) - 1)
    for start in range(0, min(len(database), 1000), 64):
        stop = min(start + 64, len(database))
        assert len(database.read(start, stop)) == stop - start
        database.rows(start, stop)
    assert len(list(database.keys())) == len(database)
    _read_all(path.parent)


def _record(content: bytes, folder: Path) -> None:
    from osucaffe.data.databases.datum import parse_datum, pixels

    for colour in True, False, None:
        try:
            pixels(parse_datum(memoryview(content)), colour)
        except ValueError as error:  # which read_record names the record of
            raise UserError(str(error)) from None


@_written("image")
def _image(path: Path) -> None:
    read_image(str(path))
    read_image(str(path), colour=None, size=(4, 4))


@_written("list.txt")
def _list(path: Path) -> None:
    read_list(str(path))


@_written("rows.h5")
def _rows(path: Path) -> None:
    (path.parent / "rows.txt").write_text(f"{path}\n")
    source = Hdf5Source(str(path.parent / "rows.txt"), ["data", "label"])
    if sum(map(np.prod, source.shapes)) < _MOST_WORK:
        source.fill(0, [np.empty((4, *shape), np.float32) for shape in source.shapes])


def _flags(content: bytes, folder: Path) -> None:
    os.environ["OSUCAFFE_DEBUG"] = "1"  # all errors are raised
    restarts.run = _refuse_run  # type: ignore[assignment]
    device_rates.SECONDS, device_rates.MATRIX["cpu"], device_rates.COPIED["cpu"] = 1e-3, 64, 1 << 12
    own = folder / "flags"
    if not _copied or _state_of(own) != _copied[0]:
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(_corpus[0], own)
        _copied[:] = [_state_of(own)]
    os.chdir(own)
    words = content.decode("utf-8", "surrogateescape").split("\n")
    try:
        cli.main(words)
    except SystemExit as error:
        if error.code not in (0, 2, None):
            raise RuntimeError(f"exit code {error.code}") from error


def _state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """The size of each file below, and when it was written."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            told = os.lstat(os.path.join(parent, name))
            found[os.path.join(parent, name)] = told.st_size, told.st_mtime_ns
    return found


def _refuse_run(*given: Any) -> None:
    raise UserError("another program would run")


def _broken(content: bytes, folder: Path) -> None:
    """Fails, to test the harness."""
    if content == b"abort":
        os.abort()
    if content == b"memory":
        bytearray(1 << 40)
    if b"raise" in content:
        raise ZeroDivisionError


TARGETS: dict[str, Callable[[bytes, Path], Any]] = {
    "net": _net,
    "fields": _net,
    "layer": _net,
    "solver": _solver,
    "weights": _written("w.caffemodel")(_weights),
    "weights_h5": _written("w.caffemodel.h5")(_weights),
    "state": _written("s.solverstate")(_state),
    "state_h5": _written("s.solverstate.h5")(_state),
    "lmdb": _lmdb,
    "record": _record,
    "image": _image,
    "mean": _written("m.binaryproto")(read_mean),
    "windows": _written("windows.txt")(lambda path: read_windows(str(path))),
    "list": _list,
    "data_h5": _rows,
    "cifar": _written("test_batch")(lambda path: read_batch(path.parent, path.name)),
    "flags": _flags,
    "broken": _broken,
}
KINDS = [name for name in TARGETS if name != "broken"]
ASKS_FOR_MEMORY = ("net", "fields", "layer", "solver", "flags")
"""Kinds of which an input may well ask for more memory than there is."""


def warm() -> None:
    """Have what inputs need imported and made before there are children, which need not again."""
    _trained()
    _solver_at_rest()
    Image.init()
    for name in _LATER:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no child goes through all this to look for what is gone
