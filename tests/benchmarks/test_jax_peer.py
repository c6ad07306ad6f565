"""The JAX peer computes what osucaffe computes: it is the same network that is compared."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.nets import synthetic_batch, training_net
from osucaffe.proto import NetParameter, parse_text
from tests.benchmarks.test_torch_peer import RESIDUAL, SMALL, close, ours

jax = pytest.importorskip("jax")

from benchmarks.peers.jax_peer import JaxPeer  # noqa: E402 (needs JAX)

# Few enough values that no ReLU's input is so near 0 that rounding decides.
SHUFFLED = """
layer { name: "in" type: "Input" top: "data" top: "label"
        input_param { shape { dim: 2 dim: 3 dim: 5 dim: 4 }
                      shape { dim: 2 dim: 3 dim: 10 dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
        num_output: 12 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "shuffle" type: "PixelShuffle" bottom: "conv" top: "shuffle"
        pixel_shuffle_param { upscale_factor: 2 } }
layer { name: "loss" type: "L1Loss" bottom: "shuffle" bottom: "label" top: "loss"
        loss_param { normalization: FULL } }
"""


@pytest.mark.parametrize(
    "param",
    [
        parse_text(SMALL, NetParameter),
        parse_text(RESIDUAL, NetParameter),
        parse_text(SHUFFLED, NetParameter),
        training_net("lenet", 2),
        training_net("cifar10_quick", 2),
    ],
    ids=["small", "residual", "shuffled", "lenet", "cifar10_quick"],
)
def test_same_blobs_and_gradients(param: NetParameter) -> None:
    net, batch = ours(param)
    peer = JaxPeer(param, "fp32")
    learned = {
        layer.name: layer.parameters
        for layer in net.layers
        if layer.parameters and layer.type != "BatchNorm"  # its statistics are not learned
    }
    parameters = dict(peer.parameters)
    for spec in peer.specs:
        values = [net.backend.read(blob.data) for blob in learned.get(spec.name, ())]
        parameters[spec.name] = peer.converted(spec, values)
    with jax.default_matmul_precision("highest"):
        (loss, (_, blobs)), gradients = jax.value_and_grad(peer.loss, has_aux=True)(
            parameters, peer.statistics, peer.batch(batch), jax.random.key(0)
        )
    assert float(loss) == pytest.approx(net.loss(), rel=1e-5)
    for name, values in blobs.items():
        found = np.asarray(values)
        assert close(found.transpose(0, 3, 1, 2) if found.ndim == 4 else found, net.read(name)), (
            name
        )
    for spec in peer.specs:
        wanted = [net.backend.read(blob.diff) for blob in learned.get(spec.name, ())]
        for found, values in zip(gradients[spec.name], peer.converted(spec, wanted), strict=True):
            assert close(np.asarray(found), values), spec.name


def test_an_iteration_updates_what_is_learned_and_the_statistics() -> None:
    peer = JaxPeer(parse_text(RESIDUAL, NetParameter), "bf16")
    inputs = peer.batch(synthetic_batch(parse_text(RESIDUAL, NetParameter)))
    history = jax.tree.map(jax.numpy.zeros_like, peer.parameters)
    state = (peer.parameters, history, peer.statistics, jax.random.key(1))
    parameters, _, statistics, _ = peer.train(inputs, state)
    for before, after in ((peer.parameters, parameters), (peer.statistics, statistics)):
        changed = jax.tree.map(lambda a, b: bool((a != b).any()), before, after)
        assert all(jax.tree.leaves(changed))


def test_resnet50_has_a_peer() -> None:
    """Learned: all but the statistics, and conv1's bias, which batch normalization takes away."""
    peer = JaxPeer(training_net("resnet50", 1), "fp32")
    assert sum(x.size for x in jax.tree.leaves(peer.parameters)) == 25_557_032 + 64
