"""Lets a client that is not ours, OpenCV's Caffe importer, read the model files that we write."""

from pathlib import Path

import numpy as np
import pytest

from osucaffe.proto import (
    NetParameter,
    array_to_blob,
    blob_to_array,
    read_model,
    write_weights,
)

dnn = pytest.importorskip("cv2", reason="pip install osucaffe[dev]").dnn


def scores(deploy: Path, weights: Path) -> np.ndarray:
    net = dnn.readNetFromCaffe(str(deploy), str(weights))
    net.setInput(np.random.default_rng(1).random((1, 1, 28, 28), np.float32))
    return net.forward("ip2")


def test_opencv_computes_the_same_with_our_file(root: Path, tmp_path: Path, formats: Path) -> None:
    reference = formats / "lenet_iter_200.caffemodel"
    deploy, ours = root / "models" / "lenet" / "deploy.prototxt", tmp_path / "ours.caffemodel"
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
