"""The training half of bench_data: AlexNet on a GPU, data on it or in LMDBs."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from osucaffe.data.config import DataConfig
from osucaffe.graph.prototxt.filter import filter_layers, net_state
from osucaffe.proto import caffe_pb2
from osucaffe.solvers import Solver

from .. import nets
from ..built import solver_settings
from .bench_data_sides import BATCH, TRANSFORM

MODEL = "alexnet"
ITERATIONS = 100


def measure(paths: dict[str, Path], readers: list[int], rounds: int) -> dict[str, Any]:
    """Images per second in bf16: with the data on the device, and from the LMDBs, in turns.

    paths: of the raw and of the JPEG records. JPEGs are decoded by a reader on each core, or on the
    GPU.
    """
    import cupy

    from osucaffe.backends.cuda import Cuda

    sides: dict[str, Solver] = {"on the device": _solver(nets.training_net(MODEL, BATCH), Cuda)}
    for name, values in nets.synthetic_batch(sides["on the device"].net.param).items():
        sides["on the device"].net.write(name, values)
    for count in readers:
        net = _from_database(paths["raw"])
        sides[f"raw, {count} readers"] = _solver(net, Cuda, readers=count)
    sides["JPEG, a reader a core"] = _solver(_from_database(paths["JPEG"]), Cuda)
    sides["JPEG, decoded on the GPU"] = _solver(_from_database(paths["JPEG"]), Cuda, decode="gpu")
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, solver in sides.items():
            rates[name].append(_rate(solver))
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "device": properties["name"].decode(),
        "images_per_second": {name: round(statistics.median(each)) for name, each in rates.items()},
        "runs": {name: [round(rate) for rate in each] for name, each in rates.items()},
        "upload_bytes_per_second": _upload_rate(cupy),
    }


def _solver(net: caffe_pb2.NetParameter, backend: Any, **config: Any) -> Solver:
    data_config = DataConfig(**config)
    settings = solver_settings(net, 1e-4)
    solver = Solver(settings, backend(precision="bf16"), data_config=data_config)
    solver.step(3)
    return solver


def _from_database(path: Path) -> caffe_pb2.NetParameter:
    """The training net of models/ that reads this database."""
    net = nets.read_net(MODEL, "train_val")
    net = filter_layers(net, net_state(net, "TRAIN"))
    for layer in net.layer:
        if layer.type == "Data":
            layer.data_param.source, layer.data_param.batch_size = str(path), BATCH
            layer.transform_param.Clear()
            text_format.Parse(TRANSFORM, layer.transform_param)
    return net


def _rate(solver: Solver) -> float:
    """Images per second, once the batches that were made ahead are used up."""
    solver.step(ITERATIONS // 4)
    solver.backend.synchronize()
    start = time.perf_counter()
    solver.step(ITERATIONS)
    solver.backend.synchronize()
    return ITERATIONS * BATCH / (time.perf_counter() - start)


def _upload_rate(cupy: Any) -> float:
    """Bytes per second from pinned memory to the device."""
    nbytes = 1 << 28
    pinned, memory = cupy.cuda.alloc_pinned_memory(nbytes), cupy.empty(nbytes, "uint8")
    runtime, stream = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=True)

    def upload() -> None:
        kind = runtime.memcpyHostToDevice
        runtime.memcpyAsync(memory.data.ptr, pinned.ptr, nbytes, kind, stream.ptr)

    upload()
    stream.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        upload()
    stream.synchronize()
    return 10 * nbytes / (time.perf_counter() - start)
