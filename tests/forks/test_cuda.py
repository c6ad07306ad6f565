"""Layers of forks behind convolutions on a GPU, and what a region of no image gives."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.forks.rcnn import primitives  # noqa: F401 (declares them)
from tests.backends.cuda.simulated import simulate, with_libraries
from tests.backends.running import Output, run_call
from tests.layers.nets import build, inputs


def test_a_roi_of_no_image_gives_zeros() -> None:
    tensors = {
        "x": np.ones((1, 1, 4, 4)),
        "rois": np.array([[-1.0, 0, 0, 3, 3]]),
        "y": Output((1, 1, 3, 3)),
    }
    found = run_call(Cpu(), "roi_align", tensors, {"scale": 1.0, "pad": 0.0})
    assert not found["y"].any()


LAYERS = [
    ("ROIPooling", "x r", "roi_pooling_param { pooled_h: 2 pooled_w: 3 }"),
    ("ROIAlign", "x r", "roi_pooling_param { pooled_h: 2 pooled_w: 3 }"),
    ("ROIWarping", "x moved", "roi_warping_param { pooled_h: 2 pooled_w: 3 }"),
    ("MaskResize", "x", "mask_resize_param { output_height: 3 output_width: 9 }"),
    ("MaskPooling", "x mask", ""),
    (
        "MultiStageMeanfield",
        "x z i",
        "multi_stage_meanfield_param { theta_alpha: 9 theta_beta: 3 "
        "theta_gamma: 3 num_iterations: 2 }",
    ),
    ("PSROIPooling", "x r", "psroi_pooling_param { spatial_scale: 1 output_dim: 2 group_size: 2 }"),
    ("Reorg", "x0", "reorg_param { stride: 1 reverse: true }"),
    ("ShuffleChannel", "x", "shuffle_channel_param { group: 2 }"),
    ("Axpy", "a x z", ""),
    ("ReLU6", "x", ""),
    ("InnerProduct", "x", "inner_product_param { num_output: 5 normalize: true }"),
]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_of_forks_are_prepared(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind convolutions, so that what they read may lie in any order."""
    simulate(monkeypatch)
    text = inputs({"i": (2, 8, 5, 6), "r": (7, 5), "l": (7,), "t5": (2, 1, 4, 5)})
    for top, kernel in (("x", "1"), ("z", "1"), ("a", "1")):
        text += (
            f'layer {{ name: "{top}" type: "Convolution" bottom: "i" top: "{top}0" '
            f"convolution_param {{ num_output: 8 kernel_size: {kernel} }} }}"
        )
    text += (
        'layer { name: "pool" type: "Pooling" bottom: "a0" top: "a" '
        "pooling_param { global_pooling: true } }"
        'layer { name: "move" type: "Scale" bottom: "r" top: "moved" }'
        'layer { name: "mask" type: "Convolution" bottom: "i" top: "mask" '
        "convolution_param { num_output: 1 kernel_size: 1 } }"
        'layer { name: "rx" type: "ReLU" bottom: "x0" top: "x" }'
        'layer { name: "rz" type: "ReLU" bottom: "z0" top: "z" }'
    )
    for number, (type_, bottoms, settings) in enumerate(LAYERS):
        text += f'layer {{ name: "op{number}" type: "{type_}" top: "y{number}" {settings} '
        text += "".join(f'bottom: "{each}" ' for each in bottoms.split()) + "}"
        text += (
            f'layer {{ name: "sum{number}" type: "Reduction" bottom: "y{number}" top: "s{number}" '
        )
        text += "loss_weight: 1 }"
    text += (
        'layer { name: "w" type: "InnerProduct" bottom: "y0" top: "w" '
        "inner_product_param { num_output: 4 } }"
        'layer { name: "loss" type: "SoftmaxWithLossOHEM" bottom: "w" bottom: "l" top: "t" '
        'top: "p" top: "each" loss_weight: 1 loss_weight: 0 loss_weight: 0 }'
        'layer { name: "focal" type: "FocalLoss" bottom: "w" bottom: "l" top: "f" '
        "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 7 } }"
        'layer { name: "region" type: "RegionLoss" bottom: "x" bottom: "t5" top: "region" '
        "region_loss_param { num: 1 num_class: 3 biases: 1 biases: 2 } }"
        'layer { name: "yolo" type: "Yolov3" bottom: "z" bottom: "t5" top: "yolo" '
        "yolov3_param { num: 1 num_class: 3 mask: 0 biases: 10 biases: 20 } }"
        'layer { name: "boxes" type: "Yolov3DetectionOutput" bottom: "z" top: "boxes" '
        "yolov3_detection_output_param { num_box: 1 num_classes: 3 mask: 0 biases: 10 biases: 20 "
        "anchors_scale: 8 mask_group_num: 1 } }"
        'layer { name: "hard" type: "BoxAnnotatorOHEM" bottom: "r" bottom: "each" bottom: "l" '
        'bottom: "w" top: "hl" top: "hw" box_annotator_ohem_param { roi_per_img: 3 } }'
    )
    backend = with_libraries(Cuda(precision=precision, graphs=False))
    net = build(text, backend, phase="TRAIN")
    net.forward()
    net.backward()
