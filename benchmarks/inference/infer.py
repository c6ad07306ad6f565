"""The sides of a comparison of forward passes: osucaffe, OpenCV's dnn, ONNX Runtime and
PyTorch, on the CPU or a GPU, with the same files. Each is built for `worker`, and leaves its
outputs in a file.

job: prototxt, weights (files), outputs (the file to write), threads, precision, mode; onnx: the
file of the same net with its weights, for ONNX Runtime; batch: another one than the prototxt's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from osucaffe import proto
from osucaffe.errors import UserError
from osucaffe.proto import caffe_pb2

from .. import nets
from ..built import Built


def write_files(model: str, batch: int, folder: Path) -> dict[str, str]:
    """The deploy net for a batch, and weights for it, as files: their names for a job."""
    from osucaffe.backends.cpu import Cpu
    from osucaffe.net import Net

    prototxt, weights = folder / f"{model}-{batch}.prototxt", folder / f"{model}.caffemodel"
    prototxt.write_text(str(nets.deploy_net(model, batch)))
    if not weights.exists():
        param = nets.deploy_net(model, 1)
        for layer in param.layer:  # the fillers' values are not wanted
            layer.convolution_param.ClearField("weight_filler")
            layer.inner_product_param.ClearField("weight_filler")
        net = Net(param, backend=Cpu(), phase="TEST", inference=True)
        parameters = [
            (each.type, *pair) for each in net.layers for pair in enumerate(each.parameters)
        ]
        for seed, (kind, index, blob) in enumerate(parameters):
            values = nets.synthetic_weights(kind, index, blob.shape, seed)
            net.backend.write(blob.data, values)
        proto.write_weights(weights, net.to_proto())
    return {"prototxt": str(prototxt), "weights": str(weights)}


def write_onnx(files: dict[str, str]) -> dict[str, str]:
    """The same net as `osucaffe export` writes it: its name for a job."""
    from osucaffe.backends.cpu import Cpu
    from osucaffe.net import Net
    from osucaffe.onnx import to_onnx

    param = proto.read_net(files["prototxt"])
    net = Net(param, phase="TEST", backend=Cpu(), inspectable=True, gradients=False)
    net.load(proto.read_weights(files["weights"]))
    path = Path(files["prototxt"]).with_suffix(".onnx")
    path.write_bytes(to_onnx(net).SerializeToString())
    return {"onnx": str(path)}


def read_outputs(path: Path) -> list[np.ndarray]:
    """What a side left in its file: the outputs of its net."""
    with np.load(path) as stored:
        return list(stored.values())


def difference(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """The largest difference of outputs to a peer's, as a share of the largest number in each."""
    found = [[_numbers(each) for each in side] for side in (ours, theirs)]
    sizes = [[each.size for each in side] for side in found]
    if sizes[0] != sizes[1]:
        raise UserError(f"outputs of {sizes[0]} and of {sizes[1]} numbers")
    pairs = [(a, b) for a, b in zip(*found, strict=True) if b.size]
    return max(
        (float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs), default=0.0
    )


def _numbers(output: np.ndarray) -> np.ndarray:
    """All numbers of an output; of detections without the rows that hold none, whose score is -1,
    or 0 of OpenCV."""
    if output.ndim == 4 and output.shape[:2] == (1, 1) and output.shape[3] == 7:
        output = output[output[..., 2] > 0]
    return output.ravel()


def _read(job: dict[str, Any]) -> tuple[caffe_pb2.NetParameter, dict[str, np.ndarray]]:
    """The net, and a batch for each of its inputs."""
    param = proto.read_net(job["prototxt"])
    for layer in param.layer if "batch" in job else []:
        for shape in layer.input_param.shape:
            shape.dim[0] = job["batch"]
    return param, nets.synthetic_batch(param)


def _built(
    job: dict[str, Any],
    once: Callable[[], list[np.ndarray]],
    start: float,
    notes: dict[str, Any],
    forward: Callable[[], Any] | None = None,
    peak: Callable[[], int] | None = None,
) -> Built:
    """What runs `forward` (default: `once`, which returns the outputs): how long it took to be
    ready from start on is noted."""
    for _ in range(3):
        outputs = once()
    notes["setup"] = time.perf_counter() - start
    np.savez(job["outputs"], *(np.asarray(each, np.float32) for each in outputs))
    return Built(forward or once, notes, device_peak=peak)


def build_osucaffe(job: dict[str, Any]) -> Built:
    """A forward-only net: the input is written and the output read each time, but for GPUs, where
    the batch stays on the device."""
    import osucaffe
    from osucaffe.net import Net

    param, inputs = _read(job)
    start, peak = time.perf_counter(), None
    if job["precision"] == "cpu":
        from osucaffe.backends.cpu import Cpu

        backend: Any = Cpu(threads=job["threads"])
    else:
        from osucaffe.backends.cuda import Cuda

        from ..training.gpu import peak_of_cupy

        peak = peak_of_cupy()
        backend = Cuda(precision=job["precision"])
    net = Net(param, backend=backend, phase="TEST", inference=True)
    net.load(proto.read_weights(job["weights"]))
    order = {top: place for place, layer in enumerate(param.layer) for top in layer.top}
    names = sorted(net.outputs, key=order.__getitem__)

    def once() -> list[np.ndarray]:
        for name, values in inputs.items():
            net.write(name, values)
        net.forward()
        return [net.read(name) for name in names]

    def resident() -> None:
        net.forward()
        backend.synchronize()

    notes = {"version": osucaffe.__version__, "calls": len(net.programs[0])}
    forward = None if job["precision"] == "cpu" else resident
    return _built(job, once, start, notes, forward, peak)


def build_script(job: dict[str, Any]) -> Built:
    """A script of pycaffe's: it writes the input, runs forward and has the output."""
    import osucaffe
    import osucaffe.pycaffe as caffe

    from ..training.gpu import peak_of_cupy

    _, inputs = _read(job)
    ((data, values),) = inputs.items()
    start, peak = time.perf_counter(), peak_of_cupy()
    caffe.set_mode_gpu()
    caffe.set_precision(job["precision"])
    net = caffe.Net(job["prototxt"], job["weights"], caffe.TEST)
    (output,) = net.outputs

    def once() -> list[np.ndarray]:
        net.blobs[data].data[...] = values
        return [net.forward()[output]]

    return _built(job, once, start, {"version": osucaffe.__version__}, None, peak)


def build_opencv(job: dict[str, Any]) -> Built:
    """OpenCV's dnn on the CPU."""
    import cv2

    _, inputs = _read(job)
    start = time.perf_counter()
    cv2.setNumThreads(job["threads"])
    net = cv2.dnn.readNetFromCaffe(job["prototxt"], job["weights"])
    names = net.getUnconnectedOutLayersNames()  # in the order of the layers

    def once() -> list[np.ndarray]:
        for name, values in inputs.items():
            net.setInput(values, name)
        return list(net.forward(names))

    return _built(job, once, start, {"version": cv2.__version__})


def build_onnxruntime(job: dict[str, Any]) -> Built:
    """ONNX Runtime on the CPU, with all of its optimizations."""
    import onnxruntime

    _, inputs = _read(job)
    start = time.perf_counter()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = job["threads"], 1
    session = onnxruntime.InferenceSession(job["onnx"], options, providers=["CPUExecutionProvider"])

    def once() -> list[np.ndarray]:
        return list(session.run(None, inputs))

    return _built(job, once, start, {"version": onnxruntime.__version__})


def build_torch(job: dict[str, Any]) -> Built:
    """PyTorch's twin, channels_last. mode: "eager", "compile" (torch.compile), "graph", a captured
    CUDA graph, or "script", such a graph between copies from and to pinned memory."""
    import torch

    from ..peers.torch_peer import TorchPeer, torch_batch

    param, inputs = _read(job)
    start, precision = time.perf_counter(), job["precision"]
    device = "cpu" if precision == "cpu" else "cuda"
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    torch.set_num_threads(job["threads"])
    torch.backends.cudnn.benchmark = True
    tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    peer = TorchPeer(param).eval()
    _load(peer, param, proto.read_weights(job["weights"]))
    layout = torch.channels_last
    peer = peer.to(device=device, dtype=dtype, memory_format=layout)
    (name,) = inputs
    output = param.layer[-1].top[0]
    batch = torch_batch(inputs)
    source = batch[name].to(device) if job["mode"] == "script" else batch[name]
    x = source.to(device=device, dtype=dtype, memory_format=layout)
    run: Any = torch.compile(peer) if job["mode"] == "compile" else peer
    found: Any = None

    def forward() -> None:
        nonlocal found
        found = run({name: x})[output]

    def script() -> None:
        nonlocal found
        x.copy_(source)
        found = run({name: x})[output].float()

    notes = {"version": torch.__version__}
    with torch.inference_mode():
        if job["mode"] in ("graph", "script"):
            from ..training.gpu import captured

            replay = captured(script if job["mode"] == "script" else forward)

        def resident() -> None:
            with torch.inference_mode():
                replay() if job["mode"] == "graph" else forward()
            if device == "cuda":
                torch.cuda.synchronize()

        def once() -> list[np.ndarray]:
            resident()
            return [found.float().cpu().numpy()]

        peak = torch.cuda.max_memory_allocated if device == "cuda" else None
        if job["mode"] != "script":
            return _built(job, once, start, notes, resident, peak)
        entering = torch.empty_like(batch[name], pin_memory=True)
        leaving = torch.empty(found.shape, pin_memory=True)
        given = torch.from_numpy(inputs[name])

        @torch.inference_mode()
        def pipeline() -> list[np.ndarray]:
            entering.copy_(given)
            source.copy_(entering, non_blocking=True)
            replay()
            leaving.copy_(found, non_blocking=True)
            torch.cuda.synchronize()
            return [leaving.numpy()]

        return _built(job, pipeline, start, notes, None, peak)


def _load(peer: Any, param: caffe_pb2.NetParameter, weights: Any) -> None:
    """Give PyTorch's twin the weights, those of normalizations too."""
    import torch

    values = {
        layer.name: [
            proto.blob_to_array(each).reshape(proto.blob_shape(each)) for each in layer.blobs
        ]
        for layer in weights.layer
        if layer.blobs
    }
    peer.load(values)
    scales = {tuple(spec.bottom): spec.name for spec in param.layer if spec.type == "Scale"}
    for spec in param.layer:
        if spec.type == "BatchNorm":
            norm = peer.layers[scales[tuple(spec.top)]]
            mean, variance, factor = values[spec.name]
            norm.running_mean.copy_(torch.from_numpy(mean / factor))
            norm.running_var.copy_(torch.from_numpy(variance / factor))
