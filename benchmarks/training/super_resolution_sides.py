"""The two sides of super_resolution: a program that trains and scores with one framework.

`python -m benchmarks.training.super_resolution_sides SIDE JOB` (JSON) prints one JSON line.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import osucaffe
from osucaffe.apps.super_resolution.quality import psnr, ssim
from osucaffe.apps.super_resolution.tiling import Enlarger
from osucaffe.data.databases.database import open_database
from osucaffe.data.databases.datum import parse_datum, pixels
from osucaffe.data.pictures.bicubic import enlarge, shrink
from osucaffe.data.pictures.preprocessing import find_preprocessing
from osucaffe.graph.prototxt.filter import filter_layers, net_state
from osucaffe.net import Net
from osucaffe.proto import caffe_pb2
from osucaffe.solvers import Solver

from .. import nets
from .super_resolution import MODEL

SEED, SCALE = 1, 2
WARM, TIMED = 50, 200
"""Steps before and while the rate is found that the number of steps is chosen by."""
MOMENTUM, MOMENTUM2, DELTA = 0.9, 0.999, 1e-8
_FIRST = "first.caffemodel"


def main() -> None:
    """Train and score one side."""
    side, job = sys.argv[1], json.loads(sys.argv[2])
    with contextlib.redirect_stdout(sys.stderr):
        found = {"osucaffe": train_osucaffe, "PyTorch": train_torch}[side](job)
    print(json.dumps(found))


def training_net(job: dict[str, Any]) -> caffe_pb2.NetParameter:
    """The training phase of the model's net, which reads the job's photographs."""
    net = nets.read_net(MODEL, "train_val")
    net = filter_layers(net, net_state(net, "TRAIN"))
    param = net.layer[0].patch_data_param
    folder = Path(job["photographs"])
    param.source = str(folder / "train_lmdb")
    param.low_source = str(folder / "train_low_lmdb")
    param.batch_size = job["batch"]
    return net


def score(job: dict[str, Any], make: Callable[[np.ndarray], np.ndarray]) -> dict[str, Any]:
    """PSNR and SSIM of each held-out photograph that was shrunk and that `make` enlarges."""
    database = open_database(Path(job["photographs"]) / "val_lmdb")
    found = {}
    for key, value in database.read(0, len(database)):
        original = pixels(parse_datum(value))
        made = make(shrink(original, SCALE))
        name = bytes(key).decode().partition("_")[2]
        found[name] = psnr(made, original, SCALE), ssim(made, original, SCALE)
    return found


# -- osucaffe ------------------------------------------------------------------------------------


def train_osucaffe(job: dict[str, Any]) -> dict[str, Any]:
    """Train by a Solver; the first values stay for the other side."""
    backend = _backend(job)
    out = Path(job["out"])
    if not job["iterations"]:
        with _solver(job, backend, 2**30) as solver:
            solver.step(WARM)
            backend.synchronize()
            start = time.perf_counter()
            solver.step(TIMED)
            backend.synchronize()
        job["iterations"] = int(job["seconds"] * TIMED / (time.perf_counter() - start))
    with _solver(job, backend, job["iterations"]) as solver:
        (out / _FIRST).write_bytes(solver.net.to_proto().SerializeToString())
        backend.synchronize()
        start = time.perf_counter()
        solver.step(job["iterations"])
        backend.synchronize()
        seconds = time.perf_counter() - start
        weights = solver.net.to_proto()
    (out / "osucaffe.caffemodel").write_bytes(weights.SerializeToString())
    return _found(job, weights, seconds, f"osucaffe {osucaffe.__version__}", enlarger(job, weights))


def _found(
    job: dict[str, Any],
    weights: caffe_pb2.NetParameter,
    seconds: float,
    version: str,
    make: Callable[[np.ndarray], np.ndarray],
) -> dict[str, Any]:
    return {
        "iterations": job["iterations"],
        "seconds": seconds,
        "version": version,
        "quality": score(job, make),
        "bicubic": score(job, lambda image: enlarge(image, SCALE)),
    }


def _backend(job: dict[str, Any]) -> Any:
    if job["gpu"] is None:
        from osucaffe.backends.cpu import Cpu

        return Cpu()
    from osucaffe.backends.cuda import Cuda

    return Cuda(int(job["gpu"]), job["precision"])


@contextlib.contextmanager
def _solver(job: dict[str, Any], backend: Any, iterations: int) -> Iterator[Solver]:
    solver = Solver(
        caffe_pb2.SolverParameter(
            net_param=training_net(job),
            type="Adam",
            base_lr=job["rate"],
            lr_policy="poly",
            power=1,
            momentum=MOMENTUM,
            momentum2=MOMENTUM2,
            delta=DELTA,
            max_iter=iterations,
            random_seed=SEED,
        ),
        backend,
    )
    try:
        yield solver
    finally:
        solver.close()


def enlarger(
    job: dict[str, Any], weights: caffe_pb2.NetParameter
) -> Callable[[np.ndarray], np.ndarray]:
    """What enlarges an image by the deploy net with these weights."""
    net = Net(nets.read_net(MODEL, "deploy"), backend=_backend(job), phase="TEST", inference=True)
    net.load(weights)
    entered = find_preprocessing(weights, "")
    assert entered is not None
    return Enlarger(net, entered).enlarge


# -- PyTorch -------------------------------------------------------------------------------------


def batches(job: dict[str, Any]) -> Iterator[list[np.ndarray]]:
    """What osucaffe's layer PatchData brings: small patches and large ones, less the mean."""
    from osucaffe.backends.cpu import Cpu

    param = training_net(job)
    del param.layer[1:]
    net = Net(param, phase="TRAIN", backend=Cpu(), seed=SEED)
    for _ in range(job["iterations"]):
        net.forward()
        yield [net.read("data"), net.read("label")]


def train_torch(job: dict[str, Any]) -> dict[str, Any]:
    """The same in PyTorch: a fused Adam, channels_last, an iteration as a captured graph."""
    import torch

    from ..peers.torch_peer import TorchPeer
    from .gpu import captured

    on_gpu = job["gpu"] is not None
    device = torch.device(f"cuda:{job['gpu']}" if on_gpu else "cpu")
    tf32 = job["precision"] != "fp32"
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    out = Path(job["out"])
    first = caffe_pb2.NetParameter.FromString((out / _FIRST).read_bytes())
    peer = TorchPeer(nets.training_net(MODEL, job["batch"]))
    peer.load(_parameters(first))
    peer = peer.to(device)
    if on_gpu:
        peer = peer.to(memory_format=torch.channels_last)
    rate = torch.tensor(float(job["rate"]), device=device)
    optimizer = torch.optim.Adam(
        peer.parameters(), lr=rate, betas=(MOMENTUM, MOMENTUM2), eps=DELTA,
        fused=on_gpu, capturable=on_gpu,
    )  # fmt: skip
    side = 48
    shapes = {"data": (job["batch"], 3, side, side)}
    shapes["label"] = (job["batch"], 3, side * SCALE, side * SCALE)
    inputs = {name: torch.zeros(shape, device=device) for name, shape in shapes.items()}
    half = on_gpu and job["precision"] == "bf16"

    def train() -> None:
        optimizer.zero_grad(set_to_none=not on_gpu)
        with torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            data = inputs["data"]
            if on_gpu:
                data = data.contiguous(memory_format=torch.channels_last)
            loss = peer.loss(peer({"data": data, "label": inputs["label"]}))
        loss.backward()
        optimizer.step()

    step: Callable[[], Any] = train
    if on_gpu:
        step = captured(train)
        # Capturing made steps of its own: begin anew.
        peer.load(_parameters(first))
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()
    iterations = job["iterations"]
    start = time.perf_counter()
    for number, arrays in enumerate(batches(job)):
        rate.fill_(job["rate"] * (1 - number / iterations))
        for name, array in zip(("data", "label"), arrays, strict=True):
            inputs[name].copy_(torch.from_numpy(array))
        step()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    _store(first, peer)
    (out / "torch.caffemodel").write_bytes(first.SerializeToString())
    mean = torch.tensor(training_net(job).layer[0].transform_param.mean_value)

    @torch.no_grad()
    def make(image: np.ndarray) -> np.ndarray:
        own = mean.to(device).view(1, -1, 1, 1)
        blobs = {"data": torch.from_numpy(image.astype(np.float32))[None].to(device) - own}
        for layer, bottoms, top in peer.steps[:-1]:  # but for the loss
            blobs[top] = peer.layers[layer](*[blobs[name] for name in bottoms])
        values = (blobs["output"] + own).clamp(0, 255).add(0.5).floor()
        return values[0].byte().cpu().numpy()

    return _found(job, first, seconds, f"PyTorch {torch.__version__}", make)


def _parameters(net: caffe_pb2.NetParameter) -> dict[str, list[np.ndarray]]:
    return {
        layer.name: [
            np.array(blob.data, np.float32).reshape(tuple(blob.shape.dim)) for blob in layer.blobs
        ]
        for layer in net.layer
        if layer.blobs
    }


def _store(net: caffe_pb2.NetParameter, peer: Any) -> None:
    """Put the twin's parameters into the model."""
    for layer in net.layer:
        if layer.blobs:
            for blob, value in zip(layer.blobs, peer.layers[layer.name].parameters(), strict=True):
                blob.data[:] = value.detach().float().cpu().contiguous().numpy().ravel()


if __name__ == "__main__":
    main()
