"""The kernels of layers that are put together of formulas compile: no GPU is needed for that."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.primitives import Program
from osucaffe.blob import Blob
from osucaffe.layer import create_layer
from osucaffe.proto import LayerParameter
from tests.backends.cases import STATE
from tests.backends.running import place

from .simulated import simulate
from .test_compile import LIBRARY

LAYERS = {
    "SeLu": ([(3, 4)], ""),
    "SeLuDropout": ([(3, 4)], ""),
    "BilinearInterpolation": ([(1, 2, 3, 4), (1, 1, 5, 6)], ""),
    "JSDLoss": ([(3, 4)] * 2, ""),
    "DiceCoefLoss": ([(3, 4)] * 2, ""),
    "LabelSpecificRescale": (
        [(3, 4), (3,)],
        "label_specific_rescale_param { power_on_positive: true for_ip: true }",
    ),
    "MarginInnerProduct": (
        [(3, 4), (3,)],
        "margin_inner_product_param { num_output: 5 type: QUADRUPLE }",
    ),
    "GlobalLSEMargin": ([(3, 4), (3,)], 'top: "told"'),
    "SegAccuracy": (
        [(1, 4, 3, 2), (1, 1, 3, 2)],
        "seg_accuracy_param { reset: false ignore_label: 9 }",
    ),
    "Pooling3D": (
        [(1, 2, 4, 4, 4)],
        "pooling3d_param { kernel_size: 2 kernel_depth: 2 stride: 2 temporal_stride: 2 }",
    ),
    "DetectionLoss": (
        [(1, 7, 4, 5), (1, 6, 4, 5)],
        "detection_loss_param { cls_num: 3 field_w: 9 field_h: 9 downsample_rate: 8 }",
    ),
    "DetectionGroupLoss": (
        [(2, 3, 4, 5), (2, 4, 4, 5), (2, 6, 4, 5)],
        "detection_group_loss_param { cls_num: 3 field_w: 9 field_h: 9 stride: 8 field_xyr: 2 "
        'field_whr: 2 bbox_loss_type: "Euclidean_L2" }',
    ),
    "DetectionAccuracy": (
        [(1, 7, 4, 5), (1, 6, 4, 5)],
        "detection_accuracy_param { cls_num: 3 field_w: 9 field_h: 9 downsample_rate: 8 }",
    ),
    "SmoothL1Loss": ([(3, 4)] * 4, 'top: "each"'),
    "SoftmaxWithLoss": ([(3, 4), (3,)], 'top: "p" top: "each"'),
}  # of each type: the shapes of its bottoms, and its settings


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("type_", list(LAYERS))
def test_kernels_of_a_layer_compile(
    type_: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(monkeypatch)
    backend, (shapes, settings) = Cuda(precision=precision), LAYERS[type_]
    backend.random = STATE
    bottoms = "".join(f'bottom: "b{i}" ' for i in range(len(shapes)))
    text = f'name: "op" type: "{type_}" {bottoms} top: "y" {settings}'
    param = text_format.Parse(text, LayerParameter())
    layer = create_layer(param, "TRAIN")
    bottom = [Blob(f"b{i}", shape, flexible=True) for i, shape in enumerate(shapes)]
    top = [Blob("y", shape, flexible=True) for shape in layer.setup(shapes)[: len(param.top)]]
    program = Program()
    layer.forward(program, bottom, top)
    wanted = [i not in layer.no_gradient for i in range(len(shapes))]
    if any(wanted):
        layer.backward(program, top, wanted, bottom)
    calls = [call for call in program.calls if not call.name.startswith((*LIBRARY, "host"))]
    assert calls
    steps = backend.prepare(calls)
    for call in calls:
        for tensor in [*call.read_tensors(), *call.written_tensors(), *call.scratch]:
            if tensor.owner.array is None:
                place(backend, tensor.owner)
    for step in steps:
        step()
