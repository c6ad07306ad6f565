"""A client of ours: OpenCV's Caffe importer loads what we save and computes what we compute."""

from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.net import Net
from osucaffe.proto import read_net, read_weights, write_weights

cv2 = pytest.importorskip("cv2")
MODELS = Path(__file__).parents[1] / "models"


@pytest.mark.parametrize("model", ["lenet", "cifar10_quick", "cifar10_full", "googlenet"])
def test_opencv_computes_the_same(model, tmp_path):
    deploy = MODELS / model / "deploy.prototxt"
    param = read_net(deploy)
    param.layer[0].input_param.shape[0].dim[0] = 2
    net = Net(param, backend=Cpu(), phase="TEST", seed=3)
    random = np.random.default_rng(1)
    for parameter in net.parameters:  # the published fillers leave some nets nearly blind
        shape = parameter.blob.shape
        scale = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.1
        net.backend.write(parameter.blob.data, scale * random.standard_normal(shape))
    saved = tmp_path / "model.caffemodel"
    write_weights(saved, net.to_proto(), checksum=True)

    x = random.standard_normal(net.blobs["data"].shape).astype(np.float32)
    net.write("data", x)
    net.forward()
    ours = net.read("prob")

    theirs = cv2.dnn.readNetFromCaffe(str(deploy), str(saved))
    theirs.setInput(x)
    np.testing.assert_allclose(theirs.forward("prob"), ours, rtol=1e-4, atol=1e-6)
    assert ours.std() > 1e-3 / ours.shape[1]  # it tells the classes apart


def test_what_c_plus_plus_caffe_saved_gives_opencvs_scores(formats):
    weights = formats / "lenet_iter_200.caffemodel"
    param = read_net(MODELS / "lenet" / "deploy.prototxt")
    net = Net(param, backend=Cpu(), phase="TEST")
    net.load(read_weights(weights))
    x = np.random.default_rng(1).random(net.blobs["data"].shape, np.float32)
    net.write("data", x)
    net.forward()
    theirs = cv2.dnn.readNetFromCaffe(str(MODELS / "lenet" / "deploy.prototxt"), str(weights))
    theirs.setInput(x)
    np.testing.assert_allclose(theirs.forward(), net.read("prob"), rtol=1e-4, atol=1e-6)
