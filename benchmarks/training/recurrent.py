"""The sides of the recurrent comparison: forward and backward of an LSTM, for `worker`."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from osucaffe.proto import caffe_pb2, parse_text

from ..built import Built
from .gpu import captured, device_alone

BLOCK = {"cpu": 1, "cuda": 20}
"""Iterations between two looks at the clock: the host waits for a GPU only then."""


def lstm_net(steps: int, items: int, units: int) -> caffe_pb2.NetParameter:
    """An LSTM of as many inputs as units under a Euclidean loss, with gradients to its input."""
    wide = f"dim: {steps} dim: {items} dim: {units}"
    text = f"""
        force_backward: true
        layer {{ name: "input" type: "Input" top: "x" top: "cont" top: "target" input_param {{
          shape {{ {wide} }} shape {{ dim: {steps} dim: {items} }} shape {{ {wide} }} }} }}
        layer {{ name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "h" recurrent_param {{
          num_output: {units} weight_filler {{ type: "uniform" min: -0.05 max: 0.05 }} }} }}
        layer {{ name: "loss" type: "EuclideanLoss" bottom: "h" bottom: "target" top: "loss" }}
    """
    net = caffe_pb2.NetParameter()
    net.CopyFrom(parse_text(text, caffe_pb2.NetParameter))
    return net


def _batch(job: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The input and the target of both sides."""
    generator = np.random.default_rng(1)
    x, target = generator.standard_normal((2, job["steps"], job["items"], job["units"]), np.float32)
    return x, target / 10


def build_osucaffe(job: dict[str, Any]) -> Built:
    """All sequences begin at the first step. On a GPU an iteration is replayed as a CUDA graph."""
    import osucaffe
    from osucaffe.graph.flops import flops
    from osucaffe.net import Net

    backend = _backend(job)
    block = BLOCK[job["device"]]
    cont = np.ones((job["steps"], job["items"]), np.float32)
    cont[0] = 0
    x, target = _batch(job)
    with _alone(job):
        parameter = lstm_net(job["steps"], job["items"], job["units"])
        net = Net(parameter, phase="TRAIN", backend=backend)
        for name, values in {"x": x, "cont": cont, "target": target}.items():
            net.write(name, values)
        step = net.as_step()

        def iterate() -> None:
            for _ in range(block):
                step()
            backend.synchronize()

        iterate()
    notes = {
        "version": osucaffe.__version__,
        "flops": sum(flops(call) for program in net.programs for call in program),
    }
    return Built(iterate, notes, block)


def _alone(job: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    return device_alone() if job["device"] == "cuda" else contextlib.nullcontext()


def _backend(job: dict[str, Any]) -> Any:
    if job["device"] == "cpu":
        from osucaffe.backends.cpu import Cpu

        return Cpu(threads=job["threads"])
    from osucaffe.backends.cuda import Cuda

    return Cuda(precision=job["precision"])


def torch_loss(lstm: Any, x: Any, target: Any) -> Any:
    """The Euclidean loss of the net above: it is divided by the first axis, the steps."""
    return (lstm(x)[0] - target).square().sum() / (2 * len(x))


def build_torch(job: dict[str, Any]) -> Built:
    """torch.nn.LSTM (on a GPU: cuDNN's), eager or replayed as a CUDA graph; weights of 16 bits in a
    16-bit precision."""
    import torch

    torch.set_num_threads(job["threads"])
    torch.backends.cudnn.benchmark = True
    tf32 = job["precision"] == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    types = {"bf16": torch.bfloat16, "fp16": torch.float16}
    kind = {"device": job["device"], "dtype": types.get(job["precision"], torch.float32)}
    with _alone(job):
        lstm = torch.nn.LSTM(job["units"], job["units"]).to(**kind)
        x, target = (torch.from_numpy(each).to(**kind) for each in _batch(job))
        x.requires_grad_()
        everything = [x, *lstm.parameters()]

        def once() -> None:
            for each in everything:
                each.grad = None
            torch_loss(lstm, x, target).backward()

        block = BLOCK[job["device"]]
        run = captured(once) if job["mode"] == "graph" else once

        def iterate() -> None:
            for _ in range(block):
                run()
            if job["device"] == "cuda":
                torch.cuda.synchronize()

        iterate()
    return Built(iterate, {"version": torch.__version__}, block)
