"""The names of Caffe's extension module and its wrapper: `caffe._caffe`, `caffe.pycaffe`."""

from __future__ import annotations

from ..layers.core.python import PythonLayer
from ..proto.caffe_pb2 import LayerParameter, SolverParameter
from .blob import Blob, BlobVec
from .net import Net
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
    Solver,
    get_solver,
)

Layer = PythonLayer
RawBlobVec = BlobVec
BoolVec = DtypeVec = IntVec = LayerVec = NetVec = StringVec = list

__all__ = [
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Blob",
    "BlobVec",
    "BoolVec",
    "DtypeVec",
    "IntVec",
    "Layer",
    "LayerParameter",
    "LayerVec",
    "NesterovSolver",
    "Net",
    "NetVec",
    "RMSPropSolver",
    "RawBlobVec",
    "SGDSolver",
    "Solver",
    "SolverParameter",
    "StringVec",
    "Timer",
    "get_solver",
    "has_nccl",
    "init_log",
    "log",
    "set_device",
    "set_devices",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
]
