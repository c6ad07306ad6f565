"""The nets that several tests of the Python interface use."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import osucaffe.pycaffe as caffe
from osucaffe.backends.cpu import Cpu

CLASSES = 13

FUSED = """
input: "data" input_shape { dim: 4 dim: 3 dim: 6 dim: 7 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 5 kernel_size: 3 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "scale" type: "Scale" bottom: "bn" top: "scaled" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "scaled" top: "scaled" }
layer { name: "pool" type: "Pooling" bottom: "scaled" top: "pool"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""

SSD_BOXES = """
layer { name: "loc" type: "Convolution" bottom: "pool" top: "loc"
  convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "flat" type: "Flatten" bottom: "loc" top: "flat" }
layer { name: "conf" type: "Convolution" bottom: "pool" top: "conf"
  convolution_param { num_output: 2 kernel_size: 1 weight_filler { type: "gaussian" std: 2 } } }
layer { name: "scores" type: "Flatten" bottom: "conf" top: "scores" }
layer { name: "priors" type: "PriorBox" bottom: "pool" bottom: "data" top: "priors"
  prior_box_param { min_size: 2 variance: 0.1 } }
layer { name: "found" type: "DetectionOutput" bottom: "flat" bottom: "scores" bottom: "priors"
  top: "found" detection_output_param { num_classes: 2 confidence_threshold: 0.2
    nms_param { nms_threshold: 0.5 } } }
layer { name: "again" type: "Power" bottom: "found" top: "again" }
"""
YOLO_BOXES = """
layer { name: "grid" type: "Convolution" bottom: "pool" top: "grid"
  convolution_param { num_output: 7 kernel_size: 1 weight_filler { type: "gaussian" std: 2 } } }
layer { name: "found" type: "Yolov3DetectionOutput" bottom: "grid" top: "found"
  yolov3_detection_output_param { num_classes: 2 num_box: 1 confidence_threshold: 0.2
    biases: 2 biases: 2 mask: 0 mask_group_num: 1 anchors_scale: 3 } }
layer { name: "again" type: "Power" bottom: "found" top: "again" }
"""

SIMPLE = f"""
name: "simple"
force_backward: true
layer {{ name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param {{
    num: 5 channels: 2 height: 3 width: 4
    num: 5 channels: 1 height: 1 width: 1
    data_filler {{ type: "gaussian" std: 1 }} data_filler {{ type: "constant" }} }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {{ num_output: 11 kernel_size: 2 pad: 3
    weight_filler {{ type: "gaussian" std: 1 }} bias_filler {{ type: "constant" value: 2 }} }}
  param {{ decay_mult: 1 }} param {{ decay_mult: 0 }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "conv" top: "ip_blob"
  inner_product_param {{ num_output: {CLASSES}
    weight_filler {{ type: "gaussian" std: 2.5 }} bias_filler {{ type: "constant" value: -3 }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip_blob" bottom: "label" top: "loss" }}
"""

DEPLOY = """
name: "deploy"
force_backward: true
input: "data" input_shape { dim: 4 dim: 3 dim: 6 dim: 6 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 5 kernel_size: 3 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { pool: AVE global_pooling: true } }
layer { name: "prob" type: "Softmax" bottom: "pool" top: "prob" }
"""

SOLVER = """
test_iter: 10 test_interval: 10 base_lr: 0.01 momentum: 0.9 weight_decay: 0.0005
lr_policy: "inv" gamma: 0.0001 power: 0.75 display: 100 max_iter: 100
snapshot_after_train: false
"""


def write(folder: Path, text: str, name: str = "net.prototxt") -> str:
    """Write a file; returns its path."""
    path = folder / name
    path.write_text(text)
    return str(path)


def label(net) -> None:
    """Put classes into the label blob of the simple net."""
    blob = net.blobs["label"]
    blob.data[...] = np.random.default_rng(1).integers(CLASSES, size=blob.data.shape)


def feed(seed: int, *nets: caffe.Net) -> None:
    for net in nets:
        shape = net.blobs["data"].data.shape
        net.blobs["data"].data[...] = np.random.default_rng(seed).normal(size=shape)


def same(net: caffe.Net, plain: caffe.Net, names: list[str]) -> None:
    for name in names:
        found, wanted = net.blobs[name].data, plain.blobs[name].data
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def two_nets(folder: Path, text: str) -> list[caffe.Net]:
    """A net, and one of the same parameters that never takes the fast way."""
    nets = [caffe.Net(write(folder, text), caffe.TEST) for _ in range(2)]
    nets[0].save(str(folder / "weights"))
    nets[1].copy_from(str(folder / "weights"))
    nets[1]._forward_only = None
    return nets


class Device(Cpu):
    """The CPU, taken for a device: what scripts see of it are copies."""

    name = "device"
