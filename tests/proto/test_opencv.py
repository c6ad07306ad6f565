"""Lets a client that is not ours, OpenCV's Caffe importer, read the model files that we write."""

from pathlib import Path

import numpy as np
import pytest

from osucaffe.proto import (
    NetParameter,
    array_to_blob,
    blob_to_array,
    read_model,
    write_text,
    write_weights,
)
from osucaffe.proto.text import parse_text

dnn = pytest.importorskip("cv2", reason="pip install osucaffe[dev]").dnn

DEPLOY = """
layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 1 dim: 1 dim: 28 dim: 28 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 20 kernel_size: 5 } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2"
  convolution_param { num_output: 50 kernel_size: 5 } }
layer { name: "pool2" type: "Pooling" bottom: "conv2" top: "pool2"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "ip1" type: "InnerProduct" bottom: "pool2" top: "ip1"
  inner_product_param { num_output: 500 } }
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 10 } }
"""


def scores(deploy: Path, weights: Path) -> np.ndarray:
    net = dnn.readNetFromCaffe(str(deploy), str(weights))
    net.setInput(np.random.default_rng(1).random((1, 1, 28, 28), np.float32))
    return net.forward()


def test_opencv_computes_the_same_with_our_file(tmp_path: Path, formats: Path) -> None:
    reference = formats / "lenet_iter_200.caffemodel"
    deploy, ours = tmp_path / "deploy.prototxt", tmp_path / "ours.caffemodel"
    write_text(deploy, parse_text(DEPLOY, NetParameter))
    net = NetParameter()
    for layer in read_model(reference).layer:
        new = net.layer.add(name=layer.name, type=layer.type, top=layer.top, bottom=layer.bottom)
        new.blobs.extend(array_to_blob(blob_to_array(blob)) for blob in layer.blobs)
    write_weights(ours, net, checksum=True)
    expected = scores(deploy, reference)
    assert expected.std() > 0.1
    assert np.array_equal(scores(deploy, ours), expected)

    net.layer[-2].blobs[1].data[3] += 1  # the bias of ip2: OpenCV does read our file
    write_weights(ours, net)
    assert np.allclose(scores(deploy, ours) - expected, np.eye(10)[3], atol=1e-5)
