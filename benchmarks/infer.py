"""Owns the sides of a comparison of forward passes: osucaffe, OpenCV's dnn, ONNX Runtime and
PyTorch, on the CPU or a GPU, with the same files. Each is built for `worker`, and leaves its
outputs in a file.

job: prototxt, weights (files), outputs (the file to write), threads, precision, mode; onnx: the
file of the same net with its weights, for ONNX Runtime.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from osucaffe import proto
from osucaffe.proto import caffe_pb2

from . import nets
from .built import Built


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
    from osucaffe.export import to_onnx
    from osucaffe.net import Net

    param = proto.read_net(files["prototxt"])
    net = Net(param, phase="TEST", backend=Cpu(), inspectable=True, gradients=False)
    net.load(proto.read_weights(files["weights"]))
    path = Path(files["prototxt"]).with_suffix(".onnx")
    path.write_bytes(to_onnx(net).SerializeToString())
    return {"onnx": str(path)}


def _read(job: dict[str, Any]) -> tuple[caffe_pb2.NetParameter, np.ndarray]:
    """The net, and the batch for its one input."""
    param = proto.read_net(job["prototxt"])
    (values,) = nets.synthetic_batch(param).values()
    return param, values


def _built(
    job: dict[str, Any],
    once: Callable[[], np.ndarray],
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
    np.save(job["outputs"], np.asarray(outputs, np.float32))
    return Built(forward or once, notes, device_peak=peak)


def build_osucaffe(job: dict[str, Any]) -> Built:
    """A forward-only net: the input is written and the output read each time, but for GPUs, where
    the batch stays on the device."""
    import osucaffe
    from osucaffe.net import Net

    param, values = _read(job)
    start, peak = time.perf_counter(), None
    if job["precision"] == "cpu":
        from osucaffe.backends.cpu import Cpu

        backend: Any = Cpu(threads=job["threads"])
    else:
        from osucaffe.backends.cuda import Cuda

        from .gpu import peak_of_cupy

        peak = peak_of_cupy()
        backend = Cuda(precision=job["precision"])
    net = Net(param, backend=backend, phase="TEST", inference=True)
    net.load(proto.read_weights(job["weights"]))
    (data,), (output,) = net.inputs, net.outputs

    def once() -> np.ndarray:
        net.write(data, values)
        net.forward()
        return net.read(output)

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

    from .gpu import peak_of_cupy

    _, values = _read(job)
    start, peak = time.perf_counter(), peak_of_cupy()
    caffe.set_mode_gpu()
    caffe.set_precision(job["precision"])
    net = caffe.Net(job["prototxt"], job["weights"], caffe.TEST)
    (data,), (output,) = net.inputs, net.outputs

    def once() -> np.ndarray:
        net.blobs[data].data[...] = values
        return net.forward()[output]

    return _built(job, once, start, {"version": osucaffe.__version__}, None, peak)


def build_opencv(job: dict[str, Any]) -> Built:
    """OpenCV's dnn on the CPU."""
    import cv2

    _, values = _read(job)
    start = time.perf_counter()
    cv2.setNumThreads(job["threads"])
    net = cv2.dnn.readNetFromCaffe(job["prototxt"], job["weights"])

    def once() -> np.ndarray:
        net.setInput(values)
        found: np.ndarray = net.forward()
        return found

    return _built(job, once, start, {"version": cv2.__version__})


def build_onnxruntime(job: dict[str, Any]) -> Built:
    """ONNX Runtime on the CPU, with all of its optimizations."""
    import onnxruntime

    _, values = _read(job)
    start = time.perf_counter()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = job["threads"], 1
    session = onnxruntime.InferenceSession(job["onnx"], options, providers=["CPUExecutionProvider"])
    (data,) = session.get_inputs()

    def once() -> np.ndarray:
        found: np.ndarray = session.run(None, {data.name: values})[0]
        return found

    return _built(job, once, start, {"version": onnxruntime.__version__})


def build_torch(job: dict[str, Any]) -> Built:
    """PyTorch's twin, channels_last. mode: "eager", "compile" (torch.compile), "graph", a captured
    CUDA graph, or "script", such a graph between copies from and to pinned memory."""
    import torch

    from .torch_peer import TorchPeer, torch_batch

    param, values = _read(job)
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
    (name,) = (top for layer in param.layer if layer.type == "Input" for top in layer.top)
    output = param.layer[-1].top[0]
    batch = torch_batch({name: values})
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
            from .gpu import captured

            replay = captured(script if job["mode"] == "script" else forward)

        def resident() -> None:
            with torch.inference_mode():
                replay() if job["mode"] == "graph" else forward()
            if device == "cuda":
                torch.cuda.synchronize()

        def once() -> np.ndarray:
            resident()
            result: np.ndarray = found.float().cpu().numpy()
            return result

        peak = torch.cuda.max_memory_allocated if device == "cuda" else None
        if job["mode"] != "script":
            return _built(job, once, start, notes, resident, peak)
        entering = torch.empty_like(batch[name], pin_memory=True)
        leaving = torch.empty(found.shape, pin_memory=True)
        given = torch.from_numpy(values)

        @torch.inference_mode()
        def pipeline() -> np.ndarray:
            entering.copy_(given)
            source.copy_(entering, non_blocking=True)
            replay()
            leaving.copy_(found, non_blocking=True)
            torch.cuda.synchronize()
            result: np.ndarray = leaving.numpy()
            return result

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
