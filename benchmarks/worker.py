"""One side of a comparison: a process that builds a net once and runs iterations when told.

Started by `measure.Worker` with a job (JSON) as its argument. It answers one JSON line when it is
ready, or has failed (`error`: the message), then one for every line on standard input, which holds
a number of seconds to run for.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from osucaffe.proto import caffe_pb2

from . import nets
from .built import DECAY, LEARNING_RATE, MOMENTUM, Built, Iterate, solver_settings
from .inference import infer
from .training import gpu, recurrent

WARM_UP_SECONDS = 0.5


def main() -> None:
    """Build the job's net, then run it whenever standard input says so."""
    # Libraries may print: the answers go to the real standard output, all else to the error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = json.loads(sys.argv[1])
    try:
        built = _FRAMEWORKS[job["framework"]](job)
        if built.iterate is not None:
            _run(built.iterate, WARM_UP_SECONDS)
    except Exception as error:
        message = "".join(traceback.format_exception_only(error)).strip()
        print(json.dumps({"error": message}), file=answers, flush=True)
        raise
    print(json.dumps(built.notes), file=answers, flush=True)
    if built.iterate is None:
        return
    for line in sys.stdin:
        start = time.process_time()
        times = _run(built.iterate, float(line))
        answer = {
            "times": [each / built.iterations for each in times],
            "cpu": time.process_time() - start,
            "peak": built.device_peak() if built.device_peak else _memory("VmHWM"),
            "growth": _memory("VmHWM") - _imported,
        }
        print(json.dumps(answer), file=answers, flush=True)


def _run(iterate: Iterate, seconds: float) -> list[float]:
    """The duration in seconds of each iteration; at least two of them."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        iterate()
        times.append(time.perf_counter() - start)
    return times


_imported = 0
"""Resident bytes when the framework was imported and nothing built yet."""


def _note_imported() -> None:
    global _imported
    _imported = _memory("VmRSS")


def _memory(field_name: str) -> int:
    """Bytes from /proc: VmRSS (resident now) or VmHWM (the most there was)."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field_name + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field_name}")


def _net(job: dict[str, Any]) -> caffe_pb2.NetParameter:
    make = nets.training_net if job["update"] else nets.deploy_net_with_loss
    return make(job["model"], job["batch"])


def _build_osucaffe(job: dict[str, Any]) -> Built:
    import osucaffe
    from osucaffe.backends.cpu import Cpu
    from osucaffe.net import Net
    from osucaffe.solvers import Solver

    _note_imported()
    backend = Cpu(threads=job["threads"])
    net_parameter = _net(job)
    if not job["update"]:
        net = Net(net_parameter, phase="TRAIN", backend=backend)
        _feed(net, net_parameter)

        def forward_backward() -> None:
            net.forward()
            net.backward()

        return Built(forward_backward, {"version": osucaffe.__version__, "flops": _flops(net)})
    solver = Solver(solver_settings(net_parameter), backend)
    _feed(solver.net, net_parameter)
    notes = {"version": osucaffe.__version__, "flops": _flops(solver.net)}
    return Built(lambda: solver.step(1), notes)


def _flops(net: Any) -> int:
    """The arithmetic of one forward and one backward pass."""
    from osucaffe.graph.flops import flops

    return sum(flops(call) for program in net.programs for call in program)


def _feed(net: Any, net_parameter: caffe_pb2.NetParameter) -> None:
    for name, values in nets.synthetic_batch(net_parameter).items():
        net.write(name, values)


def _build_torch(job: dict[str, Any]) -> Built:
    import torch

    from .peers.torch_peer import TorchPeer, torch_batch

    _note_imported()
    torch.set_num_threads(job["threads"])
    net_parameter = _net(job)
    peer = TorchPeer(net_parameter)
    batch = torch_batch(nets.synthetic_batch(net_parameter))
    if job["layout"] == "channels_last":
        peer = peer.to(memory_format=torch.channels_last)
        batch = {
            name: x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
            for name, x in batch.items()
        }
    optimizer = torch.optim.SGD(
        peer.parameter_groups(LEARNING_RATE, DECAY), lr=LEARNING_RATE, momentum=MOMENTUM, fused=True
    )

    def iterate() -> None:
        optimizer.zero_grad()
        peer.loss(peer(batch)).backward()
        if job["update"]:
            optimizer.step()

    return Built(iterate, {"version": torch.__version__})


_SGEMM_SIZE = 2048


def _build_torch_sgemm(job: dict[str, Any]) -> Built:
    import torch

    torch.set_num_threads(job["threads"])
    a, b = (torch.rand(_SGEMM_SIZE, _SGEMM_SIZE) for _ in range(2))
    c = torch.empty_like(a)
    return Built(lambda: torch.mm(a, b, out=c), {"flops": 2 * _SGEMM_SIZE**3})


def _build_numpy_sgemm(job: dict[str, Any]) -> Built:
    generator = np.random.default_rng(1)
    a, b = (generator.random((_SGEMM_SIZE, _SGEMM_SIZE), np.float32) for _ in range(2))
    c = np.empty_like(a)
    return Built(lambda: np.matmul(a, b, out=c), {"flops": 2 * _SGEMM_SIZE**3})


_FRAMEWORKS: dict[str, Callable[[dict[str, Any]], Built]] = {
    "osucaffe": _build_osucaffe,
    "torch": _build_torch,
    "torch sgemm": _build_torch_sgemm,
    "numpy sgemm": _build_numpy_sgemm,
    "osucaffe gpu": gpu.build_osucaffe,
    "torch gpu": gpu.build_torch,
    "jax gpu": gpu.build_jax,
    "gpu rates": gpu.build_rates,
    "osucaffe recurrent": recurrent.build_osucaffe,
    "torch recurrent": recurrent.build_torch,
    "osucaffe forward": infer.build_osucaffe,
    "osucaffe script": infer.build_script,
    "opencv forward": infer.build_opencv,
    "onnxruntime forward": infer.build_onnxruntime,
    "torch forward": infer.build_torch,
}

if __name__ == "__main__":
    main()
