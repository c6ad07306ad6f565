"""The layer type Python: layers that a user writes as classes with NumPy."""

from __future__ import annotations

import enum
import importlib
import inspect
import math
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ... import plugins
from ...proto import caffe_pb2
from ..base import Arrays, Blobs, Flags, Layer, Program, Reshaped, Shape, Shapes, register

NO_MODULES = "OSUCAFFE_NO_PYTHON_LAYERS"
"""The variable of the environment with which no module may be imported that a net names:
--no_python_layers sets it."""
STAND_INS = "osucaffe.python_modules"
"""Entry points: modules that nets name, and ours that stand in where they are not there."""

COME_WITH = {
    "roi_data_layer": "py-faster-rcnn, in its folder lib, and reads its data sets: give the net "
    "Input layers in its place, or put that folder on PYTHONPATH",
    "pylayer": "MNC, in its folder lib: put that on PYTHONPATH",
}
"""Packages that nets name, and what they belong to."""

_RESHAPE, _FORWARD, _COPY = range(3)
"""Where a forward pass begins: at the start, or where it stopped because a top's shape changed."""


def _stand_ins() -> dict[str, str]:
    return plugins.own().get(STAND_INS, {})


class Extents:
    """Caffe's old names for the extents of a `shape`: those that it does not have are 1."""

    shape: Any

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def _extent(self, axis: int) -> int:
        return self.shape[axis] if axis < len(self.shape) else 1

    num = property(lambda self: self._extent(0))
    channels = property(lambda self: self._extent(1))
    height = property(lambda self: self._extent(2))
    width = property(lambda self: self._extent(3))


class HostBlob(Extents):
    """What a Python layer sees of a blob: `data` and `diff`, NumPy arrays of one shape."""

    def __init__(self, shape: Shape) -> None:
        self.data, self.diff = (np.zeros(shape, np.float32) for _ in range(2))

    def reshape(self, *shape: int) -> None:
        """Give it another shape, with new arrays of zeros; the same shape changes nothing."""
        if self.data.shape != shape:
            self.data, self.diff = (np.zeros(shape, np.float32) for _ in range(2))

    @property
    def shape(self) -> Shape:
        return self.data.shape


class HostBlobs(list[Any]):
    """The parameters of a Python layer; `setup` may add some."""

    def add_blob(self, *shape: int) -> None:
        """Add a parameter of zeros. Write its first values to `data`, still in `setup`."""
        self.append(HostBlob(shape))


Hosts = Sequence[HostBlob]


class Phase(enum.IntEnum):
    """A phase as BVLC's Caffe has it, a number, and as py-faster-rcnn's: its text is the name."""

    TRAIN, TEST = caffe_pb2.TRAIN, caffe_pb2.TEST

    def __str__(self) -> str:
        return self.name


class PythonLayer:
    """The base of a user's layer. bottom and top are lists of HostBlob.

    param_str: the text that the prototxt gives it, which was param_str_ before Caffe 1.0. phase: 0
    (TRAIN) or 1 (TEST). blobs: parameters.
    """

    type = "Python"
    param_str_ = property(lambda self: self.param_str)

    def __init__(self, param: caffe_pb2.LayerParameter) -> None:
        self.layer_param = param
        self.param_str: str = param.python_param.param_str
        self.phase = Phase(param.phase)
        self.blobs = HostBlobs()

    def setup(self, bottom: Hosts, top: Hosts) -> None:
        """Called once, with the bottoms' shapes: check, read param_str, add parameters."""

    def reshape(self, bottom: Hosts, top: Hosts) -> None:
        """Called before each forward: give the tops their shapes."""

    def forward(self, bottom: Hosts, top: Hosts) -> None:
        """Compute the tops' data."""

    def backward(self, top: Hosts, propagate_down: Flags, bottom: Hosts) -> None:
        """Compute the bottoms' diffs, where propagate_down, and the parameters'."""


@register("Python")
class Python(Layer):
    """A class of python_param's module, which computes with NumPy on the host."""

    bottoms = tops = (0, None)
    in_place = True
    reshapes = True
    takes_empty = True
    instance: PythonLayer | None = None
    _bottom: list[HostBlob]
    _next = _RESHAPE

    def setup(self, bottom: Shapes) -> Shapes:
        before = [blob.shape for blob in self._bottom] if self.instance else None
        self._bottom = [HostBlob(shape) for shape in bottom]
        if self.instance is None:
            self._top = [HostBlob(()) for _ in self.param.top]
            self.instance = self._load()
            self.instance.setup(self._bottom, self._top)
        if bottom != before:
            self.instance.reshape(self._bottom, self._top)
        if self.is_dynamic(self.param):
            self.no_gradient = tuple(range(len(bottom)))
            self.non_differentiable_tops = tuple(range(len(self.param.top)))
        parameters = [self.add_parameter(blob.shape) for blob in self.instance.blobs]
        if before is None:
            values = [blob.data for blob in self.instance.blobs]
            tensors = [blob.data for blob in parameters]
            self.initial = list(zip(tensors, values, strict=True))
        return [blob.shape for blob in self._top]

    def _load(self) -> PythonLayer:
        param = self.param.python_param
        for field in ("module", "layer"):
            if not getattr(param, field):
                self.fail(f"python_param.{field}", "is missing")
        layer_type = getattr(self._module(param.module), param.layer, None)
        if not (inspect.isclass(layer_type) and issubclass(layer_type, PythonLayer)):
            text = f'module "{param.module}" has no class "{param.layer}" derived from caffe.Layer'
            self.fail("python_param.layer", text)
        copy = caffe_pb2.LayerParameter()
        copy.CopyFrom(self.param)
        copy.phase = getattr(caffe_pb2, self.phase)
        instance: PythonLayer = layer_type(copy)
        return instance

    def _module(self, name: str) -> ModuleType:
        if NO_MODULES in os.environ:
            if name in _stand_ins():
                return importlib.import_module(_stand_ins()[name])
            self.fail("python_param.module", f'"{name}" may not be imported (--no_python_layers)')
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not error.name:  # a module of the user's raised it
                raise
            if name in _stand_ins() and f"{name}.".startswith(f"{error.name}."):
                return importlib.import_module(_stand_ins()[name])
            self.fail("python_param.module", _missing(name, error.name))

    @classmethod
    def is_dynamic(cls, param: caffe_pb2.LayerParameter) -> bool:
        return param.python_param.module in _stand_ins()

    # -- what is recorded ------------------------------------------------------------------------

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        writes = [blob.data for blob in [*self.parameters, *top]]
        program.host([blob.data for blob in bottom], writes, function=self._run_forward)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        needed = [blob for blob, down in zip(bottom, propagate_down, strict=True) if down]
        for blob in self.parameters:
            if not program.accumulate and not program.has_written(blob.diff):
                program.fill(blob.diff, value=0.0)  # the class may add to it, or set it
        for blob in needed:
            if blob not in top:
                program.fill(blob.diff, value=0.0)  # or leave it alone, as in Caffe

        def run(reads: Arrays, writes: Arrays) -> None:
            self._run_backward(reads, writes, propagate_down)

        reads = [blob.data for blob in [*bottom, *top]] + [blob.diff for blob in top]
        writes = [blob.data for blob in self.parameters]
        writes += [blob.diff for blob in [*self.parameters, *needed]]
        program.host(reads, writes, function=run)

    # -- what runs -------------------------------------------------------------------------------

    def _run_forward(self, reads: Arrays, writes: Arrays) -> None:
        assert self.instance is not None
        blobs = self.instance.blobs
        results = writes[len(blobs) :]
        now, self._next = self._next, _RESHAPE
        if now == _COPY:
            for array, blob in zip(results, self._top, strict=True):
                array[...] = blob.data
        _give(blobs, "data", writes[: len(blobs)])
        _give(self._bottom, "data", reads)
        _give(self._top, "data", results)
        if now == _RESHAPE:
            self.instance.reshape(self._bottom, self._top)
            self._compare(results, _FORWARD)
        if now != _COPY:
            self.instance.forward(self._bottom, self._top)
            self._compare(results, _COPY)

    def _compare(self, results: Arrays, following: int) -> None:
        """Tell the net if a top's shape changed, and go on with `following` when that is done."""
        if any(blob.shape != array.shape for blob, array in zip(self._top, results, strict=True)):
            self._next = following
            raise Reshaped
        for blob, array in zip(self._top, results, strict=True):
            if blob.data is not array:  # reshaped to and fro
                array[...] = blob.data
                blob.data = array

    def _run_backward(self, reads: Arrays, writes: Arrays, propagate_down: Flags) -> None:
        assert self.instance is not None
        blobs, bottoms, tops = self.instance.blobs, len(self._bottom), len(self._top)
        _give(self._bottom, "data", reads[:bottoms])
        _give(self._top, "data", reads[bottoms : bottoms + tops])
        _give(self._top, "diff", reads[bottoms + tops :])
        _give(blobs, "data", writes[: len(blobs)])
        _give(blobs, "diff", writes[len(blobs) : 2 * len(blobs)])
        needed = [b for b, down in zip(self._bottom, propagate_down, strict=True) if down]
        _give(needed, "diff", writes[2 * len(blobs) :])
        self.instance.backward(self._top, propagate_down, self._bottom)


def _missing(module: str, name: str) -> str:
    """What to say when a module cannot be imported, as there is none of this name."""
    if name == "caffe":
        return f'"{module}" imports "caffe": import osucaffe.pycaffe before the net is built'
    if not f"{module}.".startswith(f"{name}."):
        return f'"{module}" imports "{name}", which is not there: install it'
    if f"{name}.".startswith("caffe.layers."):
        return (
            f'there is no module "{module}": caffe.layers of yours is not looked into, as '
            "osucaffe's takes its place; put the module elsewhere, and change its name here"
        )
    if name in COME_WITH:
        return f'there is no module "{module}": it comes with {COME_WITH[name]}'
    inside = f', as there is no package "{name}"' if name != module else ""
    folder = "the folder that holds it" if inside else "its folder"
    return f'there is no module "{module}"{inside}: put {folder} on PYTHONPATH'


def _give(blobs: Sequence[Any], side: str, arrays: Arrays) -> None:
    """Let the blobs' data or diff be these arrays."""
    for blob, array in zip(blobs, arrays, strict=True):
        setattr(blob, side, array)
