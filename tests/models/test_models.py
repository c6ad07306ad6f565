"""Every model of models/ builds, with the published numbers of parameters and shapes of blobs."""

from __future__ import annotations

import math

import pytest

from benchmarks.nets import MODELS as FOLDER
from benchmarks.nets import input_shape, read_net, with_inputs
from osucaffe.backends.cpu import Cpu
from osucaffe.net import Net
from osucaffe.proto import read_solver
from osucaffe.solvers.update.policy import Policy

MODELS = ("lenet", "cifar10_quick", "cifar10_full", "alexnet", "caffenet", "googlenet")
IMAGE = {
    "lenet": (1, 28, 28),
    "cifar10_quick": (3, 32, 32),
    "cifar10_full": (3, 32, 32),
    "alexnet": (3, 227, 227),
    "caffenet": (3, 227, 227),
    "googlenet": (3, 224, 224),
}
DEPLOY_BATCH = {
    "lenet": 64,
    "cifar10_quick": 1,
    "cifar10_full": 1,
    "alexnet": 10,
    "caffenet": 10,
    "googlenet": 10,
}
TRAIN_BATCH = {
    "lenet": 64,
    "cifar10_quick": 100,
    "cifar10_full": 100,
    "alexnet": 256,
    "caffenet": 256,
    "googlenet": 32,
}
PARAMETERS = {
    "lenet": 431_080,
    "cifar10_quick": 145_578,
    "cifar10_full": 89_578,
    "alexnet": 60_965_224,
    "caffenet": 60_965_224,
    "googlenet": 6_998_552,
}
AUXILIARY = {"googlenet": 13_378_280 - 6_998_552}
"""Parameters of the classifiers that the deploy net leaves out."""

# Shapes of one image's blobs, as the papers and the published nets state them.
LENET = {
    "conv1": (20, 24, 24),
    "pool1": (20, 12, 12),
    "conv2": (50, 8, 8),
    "pool2": (50, 4, 4),
    "ip1": (500,),
    "ip2": (10,),
}
CIFAR10 = {
    "conv1": (32, 32, 32),
    "pool1": (32, 16, 16),
    "conv2": (32, 16, 16),
    "pool2": (32, 8, 8),
    "conv3": (64, 8, 8),
    "pool3": (64, 4, 4),
}
ALEXNET = {
    "conv1": (96, 55, 55),
    "pool1": (96, 27, 27),
    "conv2": (256, 27, 27),
    "pool2": (256, 13, 13),
    "conv3": (384, 13, 13),
    "conv4": (384, 13, 13),
    "conv5": (256, 13, 13),
    "pool5": (256, 6, 6),
    "fc6": (4096,),
    "fc7": (4096,),
    "fc8": (1000,),
}
# Module: side, then the channels of 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5 and the pool's
# projection (Szegedy et al. 2015, table 1).
INCEPTION = {
    "3a": (28, 64, 96, 128, 16, 32, 32),
    "3b": (28, 128, 128, 192, 32, 96, 64),
    "4a": (14, 192, 96, 208, 16, 48, 64),
    "4b": (14, 160, 112, 224, 24, 64, 64),
    "4c": (14, 128, 128, 256, 24, 64, 64),
    "4d": (14, 112, 144, 288, 32, 64, 64),
    "4e": (14, 256, 160, 320, 32, 128, 128),
    "5a": (7, 256, 160, 320, 32, 128, 128),
    "5b": (7, 384, 192, 384, 48, 128, 128),
}
BRANCHES = ("1x1", "3x3_reduce", "3x3", "5x5_reduce", "5x5", "pool_proj")


def googlenet_shapes() -> dict[str, tuple[int, ...]]:
    shapes = {
        "conv1/7x7_s2": (64, 112, 112),
        "pool1/3x3_s2": (64, 56, 56),
        "pool1/norm1": (64, 56, 56),
        "conv2/3x3_reduce": (64, 56, 56),
        "conv2/3x3": (192, 56, 56),
        "conv2/norm2": (192, 56, 56),
        "pool2/3x3_s2": (192, 28, 28),
        "pool3/3x3_s2": (480, 14, 14),
        "pool4/3x3_s2": (832, 7, 7),
        "pool5/7x7_s1": (1024, 1, 1),
        "loss3/classifier": (1000,),
    }
    incoming = 192
    for module, (side, *channels) in INCEPTION.items():
        for branch, count in zip(BRANCHES, channels, strict=True):
            shapes[f"inception_{module}/{branch}"] = (count, side, side)
        shapes[f"inception_{module}/pool"] = (incoming, side, side)
        incoming = channels[0] + channels[2] + channels[4] + channels[5]
        shapes[f"inception_{module}/output"] = (incoming, side, side)
    return shapes


SHAPES = {
    "lenet": LENET,
    "cifar10_quick": CIFAR10 | {"ip1": (64,), "ip2": (10,)},
    "cifar10_full": CIFAR10 | {"norm1": (32, 16, 16), "norm2": (32, 8, 8), "ip1": (10,)},
    "alexnet": ALEXNET | {"norm1": (96, 55, 55), "norm2": (256, 27, 27)},
    "caffenet": ALEXNET | {"norm1": (96, 27, 27), "norm2": (256, 13, 13)},
    "googlenet": googlenet_shapes(),
}
AUXILIARY_SHAPES = {
    f"{head}/{name}": shape
    for head, channels in (("loss1", 512), ("loss2", 528))
    for name, shape in {
        "ave_pool": (channels, 4, 4),
        "conv": (128, 4, 4),
        "fc": (1024,),
        "classifier": (1000,),
    }.items()
}
OUTPUTS = {
    "TRAIN": {"googlenet": {"loss1/loss1", "loss2/loss1", "loss3/loss3"}},
    "TEST": {
        "googlenet": {
            f"{head}/{name}"
            for head, loss in (("loss1", "loss1"), ("loss2", "loss1"), ("loss3", "loss3"))
            for name in (loss, "top-1", "top-5")
        }
    },
}


def count(net: Net) -> int:
    return sum(parameter.blob.data.count for parameter in net.parameters)


def shapes(net: Net) -> dict[str, tuple[int, ...]]:
    """Of the blobs that the prototxt names: not of those that splits made."""
    return {
        name: blob.shape
        for layer in net.layers
        if layer.type != "Split"
        for name, blob in ((top, net.blobs[top]) for top in layer.param.top)
    }


@pytest.mark.parametrize("model", MODELS)
def test_deploy(model: str) -> None:
    batch = DEPLOY_BATCH[model]
    net = Net(read_net(model, "deploy"), phase="TEST", backend=Cpu())
    assert input_shape(model) == IMAGE[model]
    assert count(net) == PARAMETERS[model]
    assert net.inputs == ["data"]
    assert net.outputs == ["prob"]
    wanted = {name: (batch, *shape) for name, shape in SHAPES[model].items()}
    classes = 10 if IMAGE[model][1] <= 32 else 1000
    assert shapes(net) == wanted | {"data": (batch, *IMAGE[model]), "prob": (batch, classes)}


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("model", MODELS)
def test_train_val(model: str, phase: str) -> None:
    batch = 2
    param = with_inputs(read_net(model, "train_val"), {"data": IMAGE[model]}, batch)
    for layer in param.layer:  # drawing 60 million weights would take most of the time
        layer.convolution_param.ClearField("weight_filler")
        layer.inner_product_param.ClearField("weight_filler")
    net = Net(param, phase=phase, backend=Cpu())
    assert count(net) == PARAMETERS[model] + AUXILIARY.get(model, 0)
    plain = {"loss", "accuracy"} if phase == "TEST" else {"loss"}
    outputs = OUTPUTS[phase].get(model, plain)
    assert set(net.outputs) == outputs
    wanted = SHAPES[model] | (AUXILIARY_SHAPES if model in AUXILIARY else {})
    assert shapes(net) == (
        {name: (batch, *shape) for name, shape in wanted.items()}
        | {"data": (batch, *IMAGE[model]), "label": (batch,)}
        | dict.fromkeys(outputs, ())
    )


@pytest.mark.parametrize("model", MODELS)
def test_train_val_reads_databases(model: str) -> None:
    training, testing = (
        layer for layer in read_net(model, "train_val").layer if layer.type == "Data"
    )
    assert training.data_param.batch_size == TRAIN_BATCH[model]
    for layer in (training, testing):
        assert layer.data_param.source.startswith("data/")
        assert list(layer.top) == ["data", "label"]


@pytest.mark.parametrize("model", MODELS)
def test_deploy_shares_the_layers_of_train_val(model: str) -> None:
    """So that weights trained with one load into the other, by layer name."""
    trained = {layer.name: layer for layer in read_net(model, "train_val").layer}
    for layer in read_net(model, "deploy").layer:
        if layer.type not in ("Input", "Softmax"):
            assert layer == trained[layer.name]


def test_googlenet_loss_weights() -> None:
    net = Net(
        with_inputs(read_net("googlenet", "train_val"), {"data": IMAGE["googlenet"]}, 1),
        backend=Cpu(),
    )
    assert net.loss_weight("loss1/loss1") == pytest.approx(0.3)
    assert net.loss_weight("loss2/loss1") == pytest.approx(0.3)
    assert net.loss_weight("loss3/loss3") == 1


@pytest.mark.parametrize(
    ("solver", "iteration", "rate"),
    [
        ("lenet/solver", 10_000, 0.01 * 2**-0.75),
        ("cifar10_quick/solver", 3_999, 0.001),
        ("cifar10_quick/solver_lr1", 4_999, 0.0001),
        ("cifar10_full/solver", 59_999, 0.001),
        ("cifar10_full/solver_lr1", 64_999, 0.0001),
        ("cifar10_full/solver_lr2", 69_999, 0.00001),
        ("alexnet/solver", 100_000, 0.001),
        ("caffenet/solver", 449_999, 0.000001),
        ("googlenet/solver", 320_000, 0.0096),
        ("googlenet/solver_quick", 1_800_000, 0.005),
    ],
)
def test_learning_rate(solver: str, iteration: int, rate: float) -> None:
    param = read_solver(FOLDER / f"{solver}.prototxt")
    assert param.net == f"models/{solver.split('/')[0]}/train_val.prototxt"
    assert math.isclose(Policy(param, solver).rate(iteration), rate, rel_tol=1e-6)
