"""The GPU sides of a comparison: a training iteration of osucaffe, PyTorch or JAX, and the
rates of the device that floors are made of. Each is built for `worker`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import nets
from ..built import DECAY, LEARNING_RATE, MOMENTUM, Built, solver_settings

TORCH_MODES = ("eager", "compile", "reduce-overhead", "graph")
"""As it comes; torch.compile's default; its mode for little overhead; a captured CUDA graph."""

PASSES = 5
"""Times that layers are timed one by one."""
BLOCK = 20
"""Iterations between two looks at the clock: the host waits for the device only then."""


def versions() -> dict[str, Any]:
    """The name of GPU 0, and the versions of what computes there."""
    from osucaffe.cli.machine.gpus import describe_gpus

    rows = describe_gpus("0")
    found = [f"{name} {rows[name]}" for name in ("CUDA", "cuDNN", "cuBLAS")]
    return {"device": rows["GPU 0"].partition(",")[0], "versions": found}


@contextlib.contextmanager
def device_alone() -> Iterator[None]:
    """Hold the device while a side builds and is timed in parts: each picks its kernels by timing
    them."""
    with open(Path(tempfile.gettempdir()) / "osucaffe-bench-gpu.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_osucaffe(job: dict[str, Any]) -> Built:
    """A training iteration on GPU 0, replayed as one CUDA graph."""
    import osucaffe
    from osucaffe.backends.cuda import Cuda
    from osucaffe.cli.score.time import measure
    from osucaffe.graph.flops import bytes_moved, flops
    from osucaffe.solvers import Solver

    peak = peak_of_cupy()
    with device_alone():
        start = time.perf_counter()
        net_parameter = nets.training_net(job["model"], job["batch"])
        backend = Cuda(precision=job["precision"])
        solver = Solver(solver_settings(net_parameter), backend)
        for name, values in nets.synthetic_batch(net_parameter).items():
            solver.net.write(name, values)
        solver.step(1)
        backend.synchronize()
        setup = time.perf_counter() - start
        layers = measure(solver.net, PASSES)
    notes = {
        "version": osucaffe.__version__,
        "setup": setup,
        "calls": [
            (flops(call), bytes_moved([call], backend.nbytes))
            for program in solver.net.programs
            for call in program
        ],
        "parameter_bytes": backend.nbytes(solver.net.arena.data),
        "layers": [
            {
                "layer": f"{layer.name} {word}",
                "type": layer.type,
                "ms": cost.milliseconds,
                "flops": cost.flops,
                "nbytes": cost.nbytes,
                "by": [by for _, by in cost.served],
            }
            for layer in layers
            for word, cost in (("forward", layer.forward), ("backward", layer.backward))
        ],
    }

    def iterate() -> None:
        solver.step(BLOCK)
        backend.synchronize()

    return Built(iterate, notes, BLOCK, peak)


def peak_of_cupy() -> Callable[[], int]:
    """What tells the most bytes that were in use at a time from here on, as PyTorch counts."""
    import cupy

    class Watch(cupy.cuda.MemoryHook):
        name = "watch"
        peak = 0

        def malloc_postprocess(self, **_: Any) -> None:
            self.peak = max(self.peak, cupy.get_default_memory_pool().used_bytes())

    watch = Watch()
    watch.__enter__()
    return lambda: watch.peak


def build_torch(job: dict[str, Any]) -> Built:
    """The same in PyTorch, channels_last, in one of TORCH_MODES."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
        job["precision"] != "fp32"
    )
    with contextlib.nullcontext() if job.get("warm") else device_alone():
        start = time.perf_counter()
        net_parameter = nets.training_net(job["model"], job["batch"])
        peer, batch = torch_twin(net_parameter)
        once = training_step(peer, peer, batch, job["mode"], job["precision"])
        for _ in range(3):
            once()
        torch.cuda.synchronize()
        setup = time.perf_counter() - start

    def iterate() -> None:
        for _ in range(BLOCK):
            once()
        torch.cuda.synchronize()

    notes = {"version": torch.__version__, "setup": setup}
    return Built(iterate, notes, BLOCK, torch.cuda.max_memory_allocated)


def torch_twin(net_parameter: Any) -> tuple[Any, dict[str, Any]]:
    """PyTorch's twin of a net on the GPU, channels_last, and a batch for it."""
    import torch

    from ..peers.torch_peer import TorchPeer, torch_batch

    peer = TorchPeer(net_parameter).cuda().to(memory_format=torch.channels_last)
    batch = {
        name: x.cuda().to(memory_format=torch.channels_last) if x.dim() == 4 else x.cuda()
        for name, x in torch_batch(nets.synthetic_batch(net_parameter)).items()
    }
    return peer, batch


def training_step(
    peer: Any, model: Any, batch: Any, mode: str, precision: str
) -> Callable[[], Any]:
    """An iteration of the twin in a mode. model: what computes the outputs, the twin or DDP's."""
    import torch

    half = precision == "bf16"
    optimizer = torch.optim.SGD(
        peer.parameter_groups(LEARNING_RATE, DECAY), lr=LEARNING_RATE, momentum=MOMENTUM, fused=True
    )

    def loss() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=mode != "graph"):
            return peer.loss(model(batch))

    if mode in ("compile", "reduce-overhead"):
        loss = torch.compile(loss, mode="default" if mode == "compile" else mode)

    def train() -> None:
        optimizer.zero_grad(set_to_none=mode != "graph")
        loss().backward()
        optimizer.step()

    return captured(train) if mode == "graph" else train


def captured(iterate: Callable[[], None]) -> Callable[[], Any]:
    """What replays an iteration of PyTorch as a CUDA graph."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            iterate()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        iterate()
    replay: Callable[[], Any] = graph.replay
    return replay


def build_jax(job: dict[str, Any]) -> Built:
    """The same in JAX: BLOCK iterations are one program, so that no host is in between."""
    import jax

    from ..peers.jax_peer import JaxPeer

    # As it is used, memory is taken; else JAX takes three quarters at once.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    jax.config.update("jax_default_prng_impl", "rbg")  # the fast one on a GPU
    rounding = {"bf16": "bfloat16", "tf32": "tensorfloat32", "fp32": "highest"}
    jax.config.update("jax_default_matmul_precision", rounding[job["precision"]])
    with device_alone():
        start = time.perf_counter()
        net_parameter = nets.training_net(job["model"], job["batch"])
        peer = JaxPeer(net_parameter, job["precision"])
        inputs = peer.batch(nets.synthetic_batch(net_parameter))

        def block(inputs: Any, state: Any) -> Any:
            return jax.lax.scan(
                lambda state, _: (peer.train(inputs, state), None), state, length=BLOCK
            )[0]

        run = jax.jit(block, donate_argnums=1)
        history = jax.tree.map(jax.numpy.zeros_like, peer.parameters)
        state = run(inputs, (peer.parameters, history, peer.statistics, jax.random.key(1)))
        jax.block_until_ready(state)
        setup = time.perf_counter() - start

    def iterate() -> None:
        nonlocal state
        state = run(inputs, state)
        jax.block_until_ready(state)

    device = jax.devices()[0]
    if device.platform != "gpu":
        raise RuntimeError("JAX sees no GPU")
    notes = {"version": jax.__version__, "setup": setup}
    return Built(iterate, notes, BLOCK, lambda: device.memory_stats()["peak_bytes_in_use"])


_MATRIX = 8192
_COPY_BYTES = 2**30


def build_rates(job: dict[str, Any]) -> Built:
    """The device's name and rates: of a large matrix product in the precision, and of a copy."""
    import cupy
    import torch

    torch.backends.cuda.matmul.allow_tf32 = job["precision"] != "fp32"
    dtype = torch.bfloat16 if job["precision"] == "bf16" else torch.float32
    a, b = (torch.randn(_MATRIX, _MATRIX, device="cuda", dtype=dtype) for _ in range(2))
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)

    def seconds(function: Any) -> float:
        best = float("inf")
        for _ in range(5):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(10):
                function()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) / 1e4)
        return best

    notes = {
        "device": torch.cuda.get_device_name(),
        "cupy": cupy.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "cuda": torch.version.cuda,
        "flops_per_second": 2 * _MATRIX**3 / seconds(lambda: torch.mm(a, b)),
        "bytes_per_second": 2 * _COPY_BYTES / seconds(lambda: target.copy_(source)),
    }
    return Built(notes=notes)
