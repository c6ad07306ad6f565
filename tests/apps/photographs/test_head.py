"""The new last layer of a pretrained net: the best for the features of the others."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from osucaffe.apps.photographs import catalogue
from osucaffe.apps.photographs.head import _DECAY, logistic_regression
from osucaffe.backends.cpu import Cpu
from osucaffe.net import Net
from osucaffe.proto import blob_to_array, read_net, read_weights, write_weights
from tests.cli.conftest import Cli

from .photos import make_photos


def test_no_other_weights_have_a_lower_loss() -> None:
    draw = np.random.default_rng(1)
    labels = draw.integers(0, 3, 200)
    features = draw.normal(labels[:, None] * [1.0, -0.5, 0, 2], [1, 2, 1, 3]) + 5
    weight, bias = logistic_regression(features, labels, 3)
    scores = features @ weight.T + bias
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert (shares.argmax(1) == labels).mean() > 0.6
    wrong = (shares - np.eye(3)[labels]) / len(labels)
    centred, variance = features - features.mean(0), features.var(0).mean()
    # The derivative of the mean cross entropy, and that of the decay of standardized weights.
    np.testing.assert_allclose(wrong.T @ centred, -_DECAY * weight * variance, atol=1e-4)
    np.testing.assert_allclose(wrong.sum(0), 0, atol=0.01)


@pytest.fixture
def weights(cli: Cli) -> Path:
    """Of cifar10_quick, drawn at random: features of a kind."""
    net = read_net(catalogue.FOLDER / "cifar10_quick" / "deploy.prototxt")
    for layer in net.layer:
        for param in (layer.convolution_param, layer.inner_product_param):
            param.weight_filler.type = "msra"
    path = cli.folder / "small.caffemodel"
    write_weights(path, Net(net, phase="TEST", backend=Cpu(), seed=3).to_proto())
    return path


def test_it_is_trained_before_the_others(cli: Cli, weights: Path) -> None:
    make_photos(cli.folder / "photos", 10, noise=5)
    cli.ok("data", "folder", "photos", "--out=data", "--size=36", "--val_share=0.3")
    words = ("new", "finetune", "--data=data", f"--from={weights}", "--out=run", "--head")
    done = cli.ok(*words)
    begun = cli.folder / "run" / "finetune_iter_0.caffemodel"
    assert "--weights run/finetune_iter_0.caffemodel" in done.out
    layers = {layer.name: layer for layer in read_weights(begun).layer}
    assert blob_to_array(layers["ip2_new"].blobs[0]).shape == (3, 64)
    assert blob_to_array(layers["ip2_new"].blobs[0]).any()
    assert layers["conv1"].blobs == {n.name: n for n in read_weights(weights).layer}["conv1"].blobs
    result = cli.ok("test", "--model=run/train_val.prototxt", f"--weights={begun}")
    assert "unused" not in result.err
    (right,) = re.findall(r"(\d+)\.\d\d% right", result.out)
    assert int(right) > 60  # of three colours
    assert "--head are for" in cli.fails("new", "lenet", "--data=data", "--out=x", "--head").err
