"""Which of oneDNN's kernels convolutions get: never its reference code, whatever the layout."""

from __future__ import annotations

import pytest

from osucaffe.backends.primitives import Program
from osucaffe.backends.tensor import Tensor

from .programs import DNN, NEEDS_ONEDNN, blocked

pytestmark = NEEDS_ONEDNN

# C, O, extent, kernel, stride, pad, dilation, group: of nets that took minutes, or seconds.
SHAPES = {
    "SqueezeNet conv10, padded 1x1": (512, 1000, 13, 1, 1, 1, 1, 1),
    "DeepLab fc6, dilation 4 at 7x7": (512, 1024, 41, 7, 1, 12, 4, 1),
    "DeepLab, dilation 12": (512, 1024, 41, 3, 1, 12, 12, 1),
    "FCN-32s, transposed 64x64": (21, 21, 544, 64, 32, 0, 1, 1),
    "FCN-32s, transposed 63x63": (21, 21, 575, 63, 32, 0, 1, 1),
    "FCN-8s, transposed 16x16": (21, 21, 568, 16, 8, 0, 1, 1),
    "upsampling by group": (21, 21, 544, 64, 32, 0, 1, 21),
    "one channel, transposed": (1, 1, 256, 32, 16, 0, 1, 1),
    "ResNeXt": (128, 128, 56, 3, 1, 1, 1, 32),
    "ResNeXt, stride 2": (256, 256, 56, 3, 2, 1, 1, 32),
    "ShuffleNet": (240, 240, 28, 1, 1, 0, 1, 3),
    "ShuffleNet, groups beside blocks": (24, 60, 56, 1, 1, 0, 1, 3),
    "MobileNet": (64, 64, 112, 3, 2, 1, 1, 64),
    "MobileNet, dilated": (512, 512, 28, 3, 1, 2, 2, 512),
    "depthwise, not whole blocks": (60, 60, 56, 3, 1, 1, 1, 60),
    "depthwise, two filters a channel": (32, 64, 28, 3, 1, 1, 1, 32),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("row_major", [True, False])
def test_no_reference_kernel(name: str, row_major: bool) -> None:
    channels, outputs, extent, kernel, stride, pad, dilation, group = SHAPES[name]
    out = (extent + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    program = Program()

    def image(channels: int, extent: int) -> Tensor:
        shape = (2, channels, extent, extent)
        return Tensor(shape) if row_major else blocked(program, shape)

    x, y = image(channels, extent), image(outputs, out)
    w = Tensor((outputs, channels // group, kernel, kernel), flexible=True)
    settings = {
        "stride": (stride, stride),
        "pad": (pad, pad),
        "dilation": (dilation, dilation),
        "group": group,
    }
    made = len(program.calls)
    program.convolution(x, w, Tensor((outputs,)), y, **settings)
    program.convolution_backward_data(y, w, x, **settings)
    program.convolution_backward_filter(x, y, w, Tensor((outputs,)), **settings)
    steps = [DNN.prepare(None, call) for call in program.calls]
    for call, step in zip(program.calls[made:], steps[made:], strict=True):
        if step is None:  # NumPy's
            assert (call.name, group > 1) == ("convolution_backward_filter", True)
            continue
        assert not any(each.startswith("ref") for each in step.implementation.split()), call.name
