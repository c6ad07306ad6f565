"""The interface that pycaffe scripts use: `import osucaffe.pycaffe as caffe`.

`install()` lets a plain `import caffe` find it, from then on in this process.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from typing import Any

from .. import __version__, as_caffe
from ..layer import layer_names
from ..layers.core.python import PythonLayer as Layer
from ..proto.caffe_pb2 import TEST, TRAIN, LayerParameter
from . import _caffe, coord_map, draw, io, net_spec, proto
from .classifier import Classifier
from .detector import Detector
from .net import Net
from .net_spec import NetSpec, layers, params, to_proto
from .settings import (
    Timer,
    has_nccl,
    init_log,
    log,
    set_device,
    set_devices,
    set_mode_cpu,
    set_mode_gpu,
    set_multiprocess,
    set_precision,
    set_random_seed,
    set_solver_count,
    set_solver_rank,
    solver_count,
    solver_rank,
)
from .solver import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    get_solver,
)

__all__ = [
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Classifier",
    "Detector",
    "Layer",
    "LayerParameter",
    "NesterovSolver",
    "Net",
    "NetSpec",
    "RMSPropSolver",
    "SGDSolver",
    "Timer",
    "__version__",
    "coord_map",
    "draw",
    "get_solver",
    "has_nccl",
    "init_log",
    "install",
    "io",
    "layer_type_list",
    "layers",
    "log",
    "net_spec",
    "params",
    "proto",
    "pycaffe",
    "set_device",
    "set_devices",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_precision",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
    "to_proto",
]

_SUBMODULES = ("io", "net_spec", "coord_map", "draw", "classifier", "detector", "proto", "_caffe")
pycaffe = _caffe


def layer_type_list() -> list[str]:
    """The names of all layer types."""
    return layer_names()


def install() -> None:
    """Let `import caffe` and `from caffe.proto import caffe_pb2` find this package."""
    sys.modules["caffe"] = sys.modules[__name__]
    for name in _SUBMODULES:
        sys.modules[f"caffe.{name}"] = importlib.import_module(f".{name}", __name__)
    sys.modules["caffe.pycaffe"] = pycaffe
    sys.modules["caffe.proto.caffe_pb2"] = proto.caffe_pb2
    if _OfTheUser not in sys.meta_path:
        sys.meta_path.append(_OfTheUser)


class _OfTheUser(importlib.machinery.PathFinder):
    """Finds what the package lacks in a package "caffe" of the user's on `sys.path`: SSD's
    `caffe.model_libs`, modules of Python layers."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> Any:
        """Those right in the package only: what is below them has a path of its own."""
        package, _, module = name.partition(".")
        if (
            package != "caffe"
            or not module
            or "." in module
            or hasattr(sys.modules[package], module)
        ):
            return None
        folders = [os.path.join(folder, "caffe") for folder in sys.path]
        return super().find_spec(name, folders)


as_caffe.offer()
