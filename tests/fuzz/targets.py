"""What is done with an input of each kind: what the program does with it, in this process.

An input is good (it ran) or refused (UserError, which is one message); whatever else is raised is a
failure.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import itertools
import os
import pkgutil
import re
import shutil
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from osucaffe import cli
from osucaffe.api import curves, logs
from osucaffe.backends.cpu import Cpu
from osucaffe.cli.launch import restarts
from osucaffe.cli.reports import parse_log, report_page
from osucaffe.cli.score import device_rates
from osucaffe.data.databases.database import open_database
from osucaffe.data.pictures.image import read_image
from osucaffe.data.pictures.transform import Transform
from osucaffe.data.sets.cifar import read_batch
from osucaffe.data.streams.hdf5 import Hdf5Source
from osucaffe.data.streams.image_list import ImageListSource, read_list
from osucaffe.data.streams.source import DatumSource
from osucaffe.data.streams.windows import WindowSource, read_windows
from osucaffe.errors import UserError
from osucaffe.forks.cascade.object_lists import read_object_list
from osucaffe.forks.segmentation.dense_images import read_labels, read_pairs
from osucaffe.forks.ssd.make_annotated import annotated_record, read_coco, read_voc, write_label_map
from osucaffe.forks.video.video_frames import read_videos
from osucaffe.graph.flops import flops
from osucaffe.net import Net
from osucaffe.parsing import lines_of
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
from osucaffe.proto.upgrade import upgrade_net
from osucaffe.solvers import Solver

from .inputs import SOLVER_NET

_MAX_WORK = 1 << 26
"""Operations, and elements of blobs: nets that ask for more are built, but not run."""


_LATER = (
    *(
        "h5py",
        "runpy",
        "matplotlib.backends.backend_svg",
        "osucaffe.backends.cuda.backend",
        "osucaffe.comm.job.job",
        "osucaffe.pycaffe",
    ),
    *("osucaffe.data.sets.convert", "osucaffe.data.sets.mnist", "osucaffe.onnx.model"),
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
        if work + sum(blob.data.size for blob in net.blobs.values()) <= _MAX_WORK:
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


_SENT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What steers a terminal."""


@_written("solver.prototxt")
def _solver_fields(path: Path) -> None:
    """One whose fields may be any, but for files that it would write."""
    param = read_solver(path)
    param.snapshot, param.snapshot_after_train = 0, False
    if not (param.HasField("net_param") or param.HasField("net")):
        param.net_param.CopyFrom(parse_text(SOLVER_NET, NetParameter))
    for field in ("max_iter", "test_interval", "iter_size", "display", "average_loss"):
        setattr(param, field, min(getattr(param, field), 99))
    param.test_iter[:] = [min(each, 3) for each in param.test_iter]
    with contextlib.closing(Solver(param, _backend())) as solver:
        solver.step(min(param.max_iter, 2))


def _names(content: bytes, folder: Path) -> None:
    """What the summary of a net tells, or the message why there is none."""
    path = folder / "net.prototxt"
    path.write_bytes(content)
    log = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(log):
        cli.main(["summary", "--model", str(path)])
    if _SENT.search(told := out.getvalue() + log.getvalue()):
        raise RuntimeError(f"it tells {told}")


@_written("run.log")
def _log(path: Path) -> None:
    """The tables, now and then the plot, and a report's curves."""
    log = logs.parse(lines_of(path.read_bytes()))
    for rows in (log.train, *list(log.tests.values())[:3]):
        parse_log.write_table(path.with_suffix(".csv"), rows)
        if _SENT.search(path.with_suffix(".csv").read_text().replace("\n", "")):
            raise RuntimeError("a table has control characters")
    shown = "".join(curves.panel(*each) for each in logs.panels_of(log).items())
    shown += report_page.facts([("command", command) for command in log.commands])
    if _SENT.search(shown):
        raise RuntimeError("a page has control characters")
    if log.train and zlib.crc32(path.read_bytes()) % 512 == 0:
        parse_log.draw(log, str(path.with_suffix(".svg")), path.name)
        ElementTree.parse(path.with_suffix(".svg"))


_RPN = """input: "s" input_shape { dim: 1 dim: 18 dim: 4 dim: 5 }
input: "d" input_shape { dim: 1 dim: 36 dim: 4 dim: 5 } input: "i" input_shape { dim: 1 dim: 3 }
input: "r" input_shape { dim: 9 dim: 5 } input: "g" input_shape { dim: 2 dim: 5 }
layer { name: "p" type: "Python" %s python_param { module: "%s" layer: "%s" } }"""
_BUILT_IN = (
    ('bottom: "s" bottom: "d" bottom: "i" top: "y"', "rpn.proposal_layer", "ProposalLayer"),
    ('bottom: "s" bottom: "g" bottom: "i" top: "y" top: "z"', "rpn.anchor_target_layer",
     "AnchorTargetLayer"),
    ('bottom: "r" bottom: "g" top: "y" top: "z"', "rpn.proposal_target_layer",
     "ProposalTargetLayer"),
)  # fmt: skip


def _param_str(content: bytes, folder: Path) -> None:
    """A literal for each layer of the package that takes one."""
    text = content.decode(errors="replace").replace("\0", "")
    for form in _BUILT_IN:
        param = parse_text(_RPN % form, NetParameter)
        param.layer[0].python_param.param_str = text
        net = Net(upgrade_net(param), phase="TEST", backend=_backend(), seed=1, gradients=False)
        net.forward()


def _voc(content: bytes, folder: Path) -> None:
    parts = {"Annotations/a.xml": content, "ImageSets/Main/val.txt": b"a\n"}
    for name, part in parts.items():
        (folder / "voc" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "voc" / name).write_bytes(part)
    _annotated(read_voc(folder / "voc", "val", {"cow": 1, "dog": 2}))


@_written("coco.json")
def _coco(path: Path) -> None:
    entries, labels = read_coco(_corpus[0], path)
    write_label_map(path.parent / "labels.prototxt", labels)
    _annotated(entries)


def _annotated(entries: list[Any]) -> None:
    for entry in entries[:3]:
        boxes = entry.shares((8, 8))
        annotated_record(b"", entry.labels, boxes, entry.difficult, (3, 8, 8))


def _opened(content: bytes, folder: Path) -> None:
    """A list, and what it names."""
    form, _, text = content.partition(b"\n")
    path = folder / "opened.txt"
    path.write_bytes(text)
    os.chdir(_corpus[0])
    transform = Transform(TransformationParameter(crop_size=4), "TRAIN", _fail)
    match form:
        case b"1":
            for pair in read_pairs(str(path))[:3]:
                read_image(pair.image)
                read_labels(str(pair.label), (4, 4))
        case b"2":
            for video in read_videos(str(path))[:3]:
                read_image(f"{video.folder}/{video.frames}")
        case b"3":
            _fill(Hdf5Source(str(path), ["data", "label"]))
        case b"4":
            for image in read_object_list(str(path), "", difficult=False)[:3]:
                read_image(image.path)
        case b"5":
            source = WindowSource(str(path), transform, batch_size=2, foreground=0.5,
                                  background=0.5, fraction=0.5)  # fmt: skip
            _fill(source, (source.shape, ()))
        case _:
            source = ImageListSource(str(path), transform)
            _fill(source, (source.shape, ()))


def _fill(source: Any, shapes: Any = None) -> None:
    shapes = shapes or source.shapes
    if sum(map(np.prod, shapes)) < _MAX_WORK:
        source.fill(0, [np.empty((2, *shape), np.float32) for shape in shapes])


def _deep(content: bytes, folder: Path) -> None:
    """Text of any of the kinds that is very long, or nested very deeply."""
    form, _, text = content.partition(b"\n")
    target = dict(zip(b"01234567", _DEEP, strict=True)).get(form[0] if form else 0, _net)
    target(text, folder)


@_written("net.prototxt")
def _parsed(path: Path) -> None:
    read_net(path)


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
    if sum(map(np.prod, source.shapes)) < _MAX_WORK:
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


_windows = _written("windows.txt")(lambda path: read_windows(str(path)))
_DEEP = (_parsed, _solver_fields, _log, _param_str, _voc, _coco, _list, _windows)

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
    "windows": _windows,
    "list": _list,
    "solver_fields": _solver_fields,
    "opened": _opened,
    "log": _log,
    "param_str": _param_str,
    "voc": _voc,
    "coco": _coco,
    "names": _names,
    "deep": _deep,
    "data_h5": _rows,
    "cifar": _written("test_batch")(lambda path: read_batch(path.parent, path.name)),
    "flags": _flags,
    "broken": _broken,
}
KINDS = [name for name in TARGETS if name != "broken"]
ASKS_FOR_MEMORY = ("net", "fields", "layer", "solver", "solver_fields", "flags")
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
