"""The PyTorch peer computes what osucaffe computes: it is the same network that is compared."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.nets import synthetic_batch, training_net
from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import NetParameter, parse_text

torch = pytest.importorskip("torch")

from benchmarks.peers.torch_peer import TorchPeer, torch_batch  # noqa: E402 (needs torch)

# Groups, both kinds of pooling with padding that Caffe clips, normalization across channels,
# branches, two losses of different weight.
SMALL = """
layer { name: "in" type: "Input" top: "data" top: "label"
        input_param { shape { dim: 3 dim: 4 dim: 14 dim: 11 } shape { dim: 3 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
        convolution_param { num_output: 6 kernel_h: 3 kernel_w: 2 pad: 1 stride: 2 group: 2
                            weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1"
        relu_param { negative_slope: 0.1 } }
layer { name: "norm1" type: "LRN" bottom: "conv1" top: "norm1"
        lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 k: 2 } }
layer { name: "a" type: "Pooling" bottom: "norm1" top: "a"
        pooling_param { pool: MAX kernel_size: 3 stride: 2 pad: 1 } }
layer { name: "b" type: "Pooling" bottom: "norm1" top: "b"
        pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }
layer { name: "both" type: "Concat" bottom: "a" bottom: "b" top: "both" }
layer { name: "conv2" type: "Convolution" bottom: "both" top: "conv2"
        convolution_param { num_output: 8 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "relu2" type: "ReLU" bottom: "conv2" top: "conv2" }
layer { name: "mean" type: "Pooling" bottom: "conv2" top: "mean"
        pooling_param { pool: AVE global_pooling: true } }
layer { name: "ip1" type: "InnerProduct" bottom: "conv2" top: "ip1"
        inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "ip2" type: "InnerProduct" bottom: "mean" top: "ip2"
        inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss1" type: "SoftmaxWithLoss" bottom: "ip1" bottom: "label" top: "loss1" }
layer { name: "loss2" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss2"
        loss_weight: 0.3 }
"""

# A residual block: batch normalization and its scale, in place; sums with coefficients or not.
RESIDUAL = """
layer { name: "in" type: "Input" top: "data" top: "label"
        input_param { shape { dim: 5 dim: 4 dim: 6 dim: 7 } shape { dim: 5 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
        num_output: 4 kernel_size: 3 pad: 1 bias_term: false weight_filler { type: "msra" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" batch_norm_param { eps: 0.01 } }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param {
        bias_term: true filler { type: "gaussian" mean: 1 std: 0.5 }
        bias_filler { type: "gaussian" std: 0.5 } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "tenth" type: "Eltwise" bottom: "data" bottom: "conv" top: "tenth"
        eltwise_param { operation: SUM coeff: 1 coeff: 0.1 } }
layer { name: "sum" type: "Eltwise" bottom: "tenth" bottom: "conv" top: "sum" }
layer { name: "sum_relu" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "ip" type: "InnerProduct" bottom: "sum" top: "ip"
        inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def ours(param: NetParameter) -> tuple[Net, dict[str, np.ndarray]]:
    """An osucaffe net after forward and backward, and its batch."""
    net = Net(param, backend=Cpu(), phase="TRAIN", seed=3, inspectable=True)
    batch = synthetic_batch(param)
    for name, values in batch.items():
        net.write(name, values)
    net.forward()
    net.backward()
    return net, batch


def both(param: NetParameter) -> tuple[Net, TorchPeer, dict]:
    """An osucaffe net and its peer with the same weights, after forward and backward."""
    net, batch = ours(param)
    peer = TorchPeer(param)
    peer.load(
        {
            layer.name: [net.backend.read(blob.data) for blob in layer.parameters]
            for layer in net.layers
            if layer.parameters
        }
    )
    blobs = peer(torch_batch(batch))
    peer.loss(blobs).backward()
    return net, peer, blobs


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    return np.abs(found - wanted).max() <= 1e-4 * max(np.abs(wanted).max(), 1e-6)


@pytest.mark.parametrize(
    "param",
    [
        parse_text(SMALL, NetParameter),
        parse_text(RESIDUAL, NetParameter),
        training_net("cifar10_full", 2),
        training_net("lenet", 2),
        training_net("edsr_baseline", 1),
    ],
    ids=["small", "residual", "cifar10_full", "lenet", "edsr_baseline"],
)
def test_same_blobs_and_gradients(param: NetParameter) -> None:
    net, peer, blobs = both(param)
    for name, values in blobs.items():
        assert close(values.detach().numpy(), net.read(name)), name
    assert peer.loss(blobs).item() == pytest.approx(net.loss(), rel=1e-5)
    for layer in net.layers:
        if not layer.parameters or layer.type == "BatchNorm":  # whose statistics are not learned
            continue
        gradients = [parameter.grad.numpy() for parameter in peer.layers[layer.name].parameters()]
        for found, blob in zip(gradients, layer.parameters, strict=True):
            assert close(found.reshape(blob.shape), net.backend.read(blob.diff)), blob.name


def test_parameters_and_multipliers() -> None:
    peer = TorchPeer(training_net("lenet", 1))
    assert sum(parameter.numel() for parameter in peer.parameters()) == 431_080
    groups = {group["lr"]: group for group in peer.parameter_groups(0.1, 0.5)}
    assert sorted(groups) == [0.1, 0.2]
    assert [len(group["params"]) for group in groups.values()] == [4, 4]


def test_resnet50_has_a_peer() -> None:
    """Learned: all but the statistics; batch normalization and its scale are one module."""
    peer = TorchPeer(training_net("resnet50", 1))
    assert sum(parameter.numel() for parameter in peer.parameters()) == 25_557_032 + 64
    kinds = [type(module) for module in peer.layers.values()]
    assert kinds.count(torch.nn.BatchNorm2d) == 53


def test_what_the_peers_lack_is_refused() -> None:
    with pytest.raises(UserError, match='layer "scale": the peers have no normalization but'):
        TorchPeer(parse_text(RESIDUAL.replace("bias_term: true", ""), NetParameter))
    with pytest.raises(UserError, match='layer "tenth": the peers have no Eltwise but sums'):
        TorchPeer(parse_text(RESIDUAL.replace("SUM coeff: 1 coeff: 0.1", "MAX"), NetParameter))


def test_a_type_without_peer_is_refused() -> None:
    text = SMALL + 'layer { name: "odd" type: "Slice" bottom: "data" top: "x" top: "y" }'
    with pytest.raises(UserError, match='layer "odd": no PyTorch peer of type Slice'):
        TorchPeer(parse_text(text, NetParameter))
