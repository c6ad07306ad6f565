"""Layers that convolutions on GPUs are tested on, and runs of them: outputs and gradients."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda, tuned
from osucaffe.backends.cuda.convolution.problem import Problem
from osucaffe.backends.cuda.convolution.wgrad import Wgrad16Bit, WgradTf32
from osucaffe.backends.cuda.runtime.driver import Box, Pixels
from tests.backends.running import Output, Runner, run_call

Shape = tuple[int, ...]
TOLERANCES = {"fp32": 2e-5, "tf32": 2e-3, "fp16": 4e-3, "bf16": 3e-2}


class Layer(NamedTuple):
    """Shapes of images and filters, and the window."""

    x: Shape
    w: Shape
    stride: Shape = (1, 1)
    pad: Shape = (0, 0)
    group: int = 1
    dilation: Shape = (1, 1)

    @property
    def y(self) -> Shape:
        """Shape of the output."""
        extents = zip(self.x[2:], self.w[2:], self.stride, self.pad, self.dilation, strict=True)
        maps = [(n + 2 * pad - apart * (k - 1) - 1) // s + 1 for n, k, s, pad, apart in extents]
        return self.x[0], self.w[0], *maps

    @property
    def problem(self) -> Problem:
        return Problem(self.x, self.w, self.y, (self.stride, self.pad, self.dilation), self.group)

    @property
    def window(self) -> dict[str, Any]:
        """The settings of its primitives."""
        window = {"stride": self.stride, "pad": self.pad, "dilation": self.dilation}
        return {name: [*each] for name, each in window.items()} | {"group": self.group}

    def of_batch(self, batch: int) -> Layer:
        """The same on so many images."""
        return self._replace(x=(batch, *self.x[1:]))


def square(x: Shape, w: Shape, stride: int, pad: int, group: int = 1) -> Layer:
    """A layer that is alike along both axes."""
    return Layer(x, w, (stride, stride), (pad, pad), group)


LAYERS = {
    "LeNet conv1": square((8, 1, 28, 28), (20, 1, 5, 5), 1, 0),
    "LeNet conv2": square((7, 20, 12, 12), (50, 20, 5, 5), 1, 0),
    "CIFAR-10 conv1": square((5, 3, 32, 32), (32, 3, 5, 5), 1, 2),
    "CIFAR-10 conv2": square((3, 32, 16, 16), (32, 32, 5, 5), 1, 2),
    "CIFAR-10 conv3": square((9, 32, 8, 8), (64, 32, 5, 5), 1, 2),
    "AlexNet conv1": square((2, 3, 227, 227), (96, 3, 11, 11), 4, 0),
    "VGG conv1_1": square((2, 3, 224, 224), (64, 3, 3, 3), 1, 1),
    "AlexNet conv2": square((2, 96, 27, 27), (256, 48, 5, 5), 1, 2, 2),
    "GoogLeNet conv1": square((2, 3, 224, 224), (64, 3, 7, 7), 2, 3),
    "GoogLeNet 3a 1x1": square((2, 192, 28, 28), (64, 192, 1, 1), 1, 0),
    "GoogLeNet 3a 5x5": square((2, 16, 28, 28), (32, 16, 5, 5), 1, 2),
    "MobileNet conv1": square((4, 3, 225, 223), (32, 3, 3, 3), 2, 1),
    "MobileNet conv3_1": square((4, 128, 28, 28), (128, 1, 3, 3), 1, 1, 128),
    "MobileNet, odd": square((3, 60, 29, 29), (60, 1, 3, 3), 2, 1, 60),
    "96 outputs": square((3, 1, 200, 210), (96, 1, 3, 3), 1, 0),
}
"""Of real nets: libraries compute them, too."""
GROUPS = {
    "2 groups": Layer((3, 32, 13, 11), (48, 16, 3, 3), (1, 1), (1, 1), 2),
    "3 groups": Layer((5, 24, 7, 9), (36, 8, 5, 5), (1, 1), (2, 2), 3),
    "4 groups": Layer((1, 48, 11, 5), (32, 12, 5, 3), (2, 1), (2, 1), 4),
    "narrow groups": Layer((3, 6, 5, 7), (4, 3, 4, 2), (1, 1), (2, 1), 2, (1, 2)),
}
HOPPER = {
    "AlexNet conv2, more": square((4, 96, 27, 27), (256, 48, 5, 5), 1, 2, 2),
    "AlexNet conv3": square((5, 256, 13, 13), (384, 256, 3, 3), 1, 1),
    "AlexNet conv4": square((7, 384, 13, 13), (384, 192, 3, 3), 1, 1, 2),
    "AlexNet conv5": square((4, 384, 13, 13), (256, 192, 3, 3), 1, 1, 2),
    "GoogLeNet conv2": square((4, 64, 56, 56), (192, 64, 3, 3), 1, 1),
    "GoogLeNet 3b 5x5": square((4, 32, 28, 28), (96, 32, 5, 5), 1, 2),
    "GoogLeNet 4b 5x5": square((4, 24, 14, 14), (64, 24, 5, 5), 1, 2),
    "GoogLeNet 4e 3x3": square((4, 160, 14, 14), (320, 160, 3, 3), 1, 1),
    "VGG-16 conv1_2": square((1, 64, 224, 224), (64, 64, 3, 3), 1, 1),
}
"""Of real nets, for kernels in tf32 by Hopper's instructions."""
ODD_OUTPUTS = {
    "3x3": Layer((5, 20, 7, 5), (24, 20, 3, 3), pad=(1, 1)),
    "groups": Layer((3, 32, 6, 6), (40, 16, 3, 3), pad=(1, 1), group=2),
    "uneven": Layer((2, 24, 11, 13), (36, 24, 5, 3), pad=(2, 0)),
    "5x5": Layer((4, 36, 9, 8), (60, 12, 5, 5), pad=(2, 1), group=3),
    "1x3": Layer((2, 16, 9, 10), (8, 16, 1, 3), pad=(0, 2)),
    "many outputs": Layer((1, 16, 12, 9), (212, 16, 3, 3), pad=(0, 1)),
    "1x1 in groups": Layer((3, 32, 6, 7), (32, 16, 1, 1), group=2),
}
EIGHTS = {
    "3x3 in eights": Layer((5, 24, 7, 5), (24, 24, 3, 3), pad=(1, 1)),
    "5x5 in eights": Layer((2, 48, 9, 8), (80, 24, 5, 5), pad=(2, 1), group=2),
    "groups in eights": Layer((3, 64, 6, 6), (64, 32, 3, 3), pad=(1, 1), group=2),
    "1x3 in eights": Layer((2, 32, 9, 10), (8, 32, 1, 3), pad=(0, 2)),
    "many outputs in eights": Layer((1, 16, 12, 9), (208, 16, 3, 3), pad=(0, 1)),
    "1x1 in groups, eights": Layer((3, 64, 6, 7), (64, 32, 1, 1), group=2),
}
"""The same with channels that 16 bits can be loaded of."""
ODD_EIGHTS = {"groups of 40 outputs": Layer((3, 64, 6, 6), (80, 32, 3, 3), pad=(1, 1), group=2)}
"""Of which a part of a group's outputs has some of the next group."""
ODD_GRADIENTS = {
    "3x3 gradient": Layer((5, 16, 7, 5), (24, 16, 3, 3), pad=(1, 1)),
    "groups, gradient": Layer((3, 16, 6, 6), (48, 8, 3, 3), pad=(1, 1), group=2),
    "2x5": Layer((2, 40, 9, 12), (40, 40, 2, 5), pad=(1, 3)),
    "wide": Layer((1, 24, 3, 90), (72, 24, 1, 3)),
}
"""What shows the edges of implicit_gemm and of wgrad_tf32."""
IMAGE = {"image": Layer((2, 3, 23, 27), (8, 3, 7, 7), (2, 2), (2, 1))}
"""Its blocks of pixels become channels."""
OF_ANY_SIZE: list[tuple[Any, str, Any]] = [
    (tuned, "IMPLICIT_GEMM_MIN_WORK", 0),
    (WgradTf32, "least_work", 0),
    (Wgrad16Bit, "least_work", 0),
    (tuned, "SPACE_TO_DEPTH_MIN_WORK", 0),
]
"""Modules and classes, and the values of their constants with which all candidates are worth
trying, however small a layer is."""
PRIMITIVES = {
    "forward": "convolution",
    "data": "convolution_backward_data",
    "filter": "convolution_backward_filter",
}
"""By operation."""


def run(
    backend: Any,
    layer: Layer,
    operations: Collection[str] = tuple(PRIMITIVES),
    *,
    relu: float | None = 0.0,
    flexible: bool = True,
    integers: bool = False,
) -> dict[str, np.ndarray]:
    """By name: outputs with a bias and a ReLU of this slope, and bare; the images' gradient, alone
    masked by a ReLU, and added to another and masked; the filters' and biases' gradients, alone and
    added to what was there.

    integers: of small whole numbers, whose sums are exact; without biases' gradients. All runs
    twice: a step must not depend on what its last run left behind.
    """
    generator = np.random.default_rng(3)

    def draw(shape: Shape) -> np.ndarray:
        if integers:
            return generator.integers(-3, 4, size=shape).astype(np.float64)
        return generator.normal(size=shape).astype(np.float32).astype(np.float64)

    x, w, dy, b, before, relu_output, addend = map(
        draw, (layer.x, layer.w, layer.y, layer.w[:1], layer.w, layer.x, layer.x)
    )
    window = layer.window
    runner = Runner(backend, flexible=flexible)
    masks = isinstance(backend, Cuda)
    found: dict[str, Any] = {}
    if "forward" in operations:
        found |= {"y": Output(layer.y), "bare": Output(layer.y)}
        tensors = {"x": x, "w": w, "b": b, "y": found["y"]}
        runner.record("convolution", tensors, window | {"relu": relu})
        runner.record("convolution", tensors | {"b": None, "y": found["bare"]}, window)
    if "data" in operations:
        for name in ("dx", "masked", "added")[: 3 if layer.group == 1 else 2]:
            found[name] = Output(layer.x)
            runner.record(PRIMITIVES["data"], {"dy": dy, "w": w, "dx": found[name]}, window)
            if masks and name != "dx":
                runner.calls[-1].relu_output = runner.tensor(relu_output)
            if masks and name == "added":
                runner.calls[-1].addend = runner.tensor(addend)
    if "filter" in operations:
        added = {"dw": before * 10} | ({} if integers else {"db": b * 10})
        found |= {name: Output(values.shape) for name, values in added.items()}
        for tensors in {name: found[name] for name in added}, added:
            given = {"x": x, "dy": dy, "db": None, **tensors}
            runner.record(PRIMITIVES["filter"], given, window)
        runner.calls[-1].accumulates = frozenset(added)
        found |= {f"{name} added": values for name, values in added.items()}
    step = runner.prepare()
    step(), step()
    results = {name: runner.read(each) for name, each in found.items()}
    if "data" in operations and not masks:
        results["masked"] = np.where(relu_output > 0, results["masked"], 0)
        if "added" in results:
            results["added"] = np.where(relu_output > 0, results["added"] + addend, 0)
    return results


def close(found: Any, wanted: Any, tolerance: float) -> None:
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert error <= tolerance, error


def by_cpu(layer: Layer, operation: str, **tensors: np.ndarray) -> np.ndarray:
    """The outputs or a gradient of a layer, of these tensors: exact where they are small whole
    numbers."""
    output = {"forward": "y", "data": "dx", "filter": "dw"}[operation]
    given = {output: Output(getattr(layer, output[-1])), **tensors}
    no_bias = {"forward": {"b": None}, "data": {}, "filter": {"db": None}}[operation]
    return run_call(Cpu(), PRIMITIVES[operation], given | no_bias, layer.window)[output]


def rounded(values: np.ndarray) -> np.ndarray:
    """To bfloat16, as the upper halves of floats."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def memory(values: np.ndarray, dtype: str = "float32") -> np.ndarray:
    """As it lies: channels last, from an address that is a multiple of 16."""
    last = np.moveaxis(values, 1, -1) if values.ndim > 1 else values
    last = np.float32(last) if dtype == "float32" else rounded(last)
    whole = np.empty(last.size + 8, last.dtype)
    start = -whole.ctypes.data % 16 // last.itemsize
    result = whole[start : start + last.size].reshape(last.shape)
    result[...] = last
    return result


def described(box: Box | Pixels, memory: np.ndarray) -> np.ndarray:
    """An array as the stand-in for a GPU wants it."""
    if isinstance(box, Pixels):
        words = memory.ctypes.data, *box.shape, *box.before, box.channels, box.pixels
        return np.array([*words, *[0] * (16 - len(words))], np.uint64)
    vectors = box.permuted * box.box[0] * box.bytes // 16
    words = memory.ctypes.data, *box.extents, *box.strides, *box.box, vectors
    return np.array(words, np.uint64)
