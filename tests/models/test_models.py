"""Every model of models/ builds, with the published numbers of parameters and shapes of blobs."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest

from benchmarks.nets import MODELS as FOLDER
from benchmarks.nets import input_shape, read_net, with_inputs
from osucaffe.backends.cpu import Cpu
from osucaffe.graph.prototxt.filter import filter_layers, net_state
from osucaffe.net import Net
from osucaffe.proto import caffe_pb2, read_solver
from osucaffe.solvers.update.policy import Policy

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


class Published(NamedTuple):
    """What is known of a model: shapes are of one item."""

    inputs: dict[str, tuple[int, ...]]
    """What the databases bring."""
    parameters: int
    """What is learned; the statistics of batch normalization are not."""
    shapes: dict[str, tuple[int, ...]]
    batches: tuple[int, int] | None = None
    """Of the deploy net and the training net, where they are published."""
    output: str = "prob"
    """Of the deploy net."""
    is_all: bool = False
    """Whether the shapes are those of all blobs but inputs and outputs."""


def classifier(
    image: tuple[int, ...],
    parameters: int,
    shapes: dict[str, tuple[int, ...]],
    batches: tuple[int, int] | None = None,
) -> Published:
    inputs = {"data": image, "label": ()}
    return Published(inputs, parameters, shapes, batches, is_all=batches is not None)


PUBLISHED = {
    "lenet": classifier((1, 28, 28), 431_080, LENET, (64, 64)),
    "cifar10_quick": classifier(
        (3, 32, 32), 145_578, CIFAR10 | {"ip1": (64,), "ip2": (10,)}, (1, 100)
    ),
    "cifar10_full": classifier(
        (3, 32, 32),
        89_578,
        CIFAR10 | {"norm1": (32, 16, 16), "norm2": (32, 8, 8), "ip1": (10,)},
        (1, 100),
    ),
    "alexnet": classifier(
        (3, 227, 227),
        60_965_224,
        ALEXNET | {"norm1": (96, 55, 55), "norm2": (256, 27, 27)},
        (10, 256),
    ),
    "caffenet": classifier(
        (3, 227, 227),
        60_965_224,
        ALEXNET | {"norm1": (96, 27, 27), "norm2": (256, 13, 13)},
        (10, 256),
    ),
    "googlenet": classifier((3, 224, 224), 6_998_552, googlenet_shapes(), (10, 32)),
    # Simonyan and Zisserman 2015, table 2: 138 million
    "vgg16": classifier((3, 224, 224), 138_357_544, {
        **{f"conv{i}_{j}": (min(32 << i, 512), 448 >> i, 448 >> i)
           for i in range(1, 6) for j in range(1, 3 if i < 3 else 4)},
        **{f"pool{i}": (min(32 << i, 512), 224 >> i, 224 >> i) for i in range(1, 6)},
        "fc6": (4096,), "fc7": (4096,), "fc8": (1000,),
    }),
    # torchvision's, and the biases of conv1
    "resnet50": classifier((3, 224, 224), 25_557_032 + 64, {
        "conv1": (64, 112, 112), "pool1": (64, 56, 56),
        "res2a_branch1": (256, 56, 56), "res2a_branch2a": (64, 56, 56), "res2c": (256, 56, 56),
        "res3a_branch2a": (128, 28, 28), "res3d": (512, 28, 28),
        "res4a_branch2b": (256, 14, 14), "res4f": (1024, 14, 14),
        "res5a_branch2c": (2048, 7, 7), "res5c": (2048, 7, 7),
        "pool5": (2048, 1, 1), "fc1000": (1000,),
    }),
    # Lim et al. 2017: 40.7 million, and 1.37 million
    "edsr": Published({"data": (3, 48, 48), "label": (3, 96, 96)}, 40_729_603, {
        "head": (256, 48, 48), "block32": (256, 48, 48), "body": (256, 48, 48),
        "upscale_conv": (1024, 48, 48), "upscale": (256, 96, 96), "output": (3, 96, 96),
    }, output="output"),
    "edsr_baseline": Published({"data": (3, 48, 48), "label": (3, 96, 96)}, 1_369_859, {
        "head": (64, 48, 48), "block16": (64, 48, 48), "body": (64, 48, 48),
        "upscale_conv": (256, 48, 48), "upscale": (64, 96, 96), "output": (3, 96, 96),
    }, output="output"),
    "mnist_autoencoder": Published({"data": (1, 28, 28)}, 2_837_314, {
        "flatdata": (784,), "encode1neuron": (1000,), "encode4": (30,), "decode1neuron": (784,),
    }, output="decode1neuron"),
    "mnist_siamese": Published({"pair_data": (2, 28, 28), "sim": ()}, 431_102, {
        "pool2": (50, 4, 4), "ip1": (500,), "ip2": (10,), "feat": (2,),
    }, output="feat"),
}  # fmt: skip
CAFFES = [model for model, published in PUBLISHED.items() if published.batches]
HEAVY = ("vgg16", "edsr")
"""Built once only: half a gigabyte and more."""
AUXILIARY = {"googlenet": 13_378_280 - 6_998_552}
"""Parameters of the classifiers that the deploy net leaves out."""
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


def without_fillers(net: caffe_pb2.NetParameter) -> caffe_pb2.NetParameter:
    """The net with zeros as weights: drawing them takes most of the time."""
    for layer in net.layer:
        layer.convolution_param.ClearField("weight_filler")
        layer.inner_product_param.ClearField("weight_filler")
    return net


def fed(model: str, phase: str, batch: int) -> caffe_pb2.NetParameter:
    """The train_val net in a phase, with Input layers in place of those that read databases."""
    net = read_net(model, "train_val")
    net = filter_layers(net, net_state(net, phase))
    return with_inputs(net, PUBLISHED[model].inputs, batch)


def learned(net: Net) -> int:
    """Numbers that a solver changes."""
    statistics = {layer.name for layer in net.layers if layer.type == "BatchNorm"}
    return sum(each.blob.data.count for each in net.parameters if each.layer not in statistics)


def check_shapes(
    net: Net, wanted: dict[str, tuple[int, ...]], batch: int, others: dict | None = None
) -> None:
    """others: the shapes of all blobs besides, where they are known."""
    found = {  # of blobs that the prototxt names: not of those that splits made
        name: blob.shape
        for layer in net.layers
        if layer.type != "Split"
        for name, blob in ((top, net.blobs[top]) for top in layer.param.top)
    }
    shapes = {name: (batch, *shape) for name, shape in wanted.items()}
    if others is None:
        found = {name: found[name] for name in shapes}
    assert found == shapes | (others or {})


@pytest.mark.parametrize("model", PUBLISHED)
def test_deploy(model: str) -> None:
    inputs, parameters, shapes, batches, output, is_all = PUBLISHED[model]
    param, batch = without_fillers(read_net(model, "deploy")), 1
    if batches:
        batch = batches[0]
        assert input_shape(model) == inputs["data"]
    else:
        for layer in param.layer:
            if layer.type == "Input":
                layer.input_param.shape[0].dim[0] = batch
    net = Net(param, phase="TEST", backend=Cpu())
    assert learned(net) == parameters
    assert net.inputs == ["data"]
    assert net.outputs == [output]
    classes = 10 if inputs.get("data", (0, 0))[1] <= 32 else 1000
    others = {"data": (batch, *inputs["data"]), "prob": (batch, classes)} if is_all else None
    check_shapes(net, shapes, batch, others)


@pytest.mark.parametrize(
    ("model", "phase"),
    [(model, "TRAIN") for model in PUBLISHED if model not in HEAVY]
    + [(model, "TEST") for model in CAFFES],
)
def test_train_val(model: str, phase: str) -> None:
    batch = 2 if model in CAFFES else 1
    inputs, parameters, shapes, _, _, is_all = PUBLISHED[model]
    net = Net(without_fillers(fed(model, phase, batch)), phase=phase, backend=Cpu())
    assert learned(net) == parameters + AUXILIARY.get(model, 0)
    others = None
    if is_all:
        plain = {"loss", "accuracy"} if phase == "TEST" else {"loss"}
        outputs = OUTPUTS[phase].get(model, plain)
        assert set(net.outputs) == outputs
        others = {name: (batch, *shape) for name, shape in inputs.items()}
        others |= dict.fromkeys(outputs, ())
    check_shapes(net, shapes | (AUXILIARY_SHAPES if model in AUXILIARY else {}), batch, others)


@pytest.mark.parametrize("model", CAFFES)
def test_train_val_reads_databases(model: str) -> None:
    training, testing = (
        layer for layer in read_net(model, "train_val").layer if layer.type == "Data"
    )
    assert (PUBLISHED[model].batches or ())[1] == training.data_param.batch_size
    for layer in (training, testing):
        assert layer.data_param.source.startswith("data/")
        assert list(layer.top) == ["data", "label"]


@pytest.mark.parametrize("model", PUBLISHED)
def test_deploy_shares_the_layers_of_train_val(model: str) -> None:
    """So that weights trained with one load into the other, by layer name."""
    trained = {layer.name: layer for layer in read_net(model, "train_val").layer}
    for layer in read_net(model, "deploy").layer:
        if layer.name not in ("data", "prob"):
            assert layer == trained[layer.name]


def test_googlenet_loss_weights() -> None:
    net = Net(without_fillers(fed("googlenet", "TRAIN", 1)), backend=Cpu())
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
        ("vgg16/solver", 369_999, 1e-5),
        ("resnet50/solver", 150_000, 0.01),
        ("edsr/solver", 199_999, 1e-4),
        ("edsr_baseline/solver", 200_000, 5e-5),
        ("mnist_autoencoder/solver", 10_000, 1e-3),
        ("mnist_siamese/solver", 10_000, 0.01 * 2**-0.75),
    ],
)
def test_learning_rate(solver: str, iteration: int, rate: float) -> None:
    param = read_solver(FOLDER / f"{solver}.prototxt")
    assert param.net == f"models/{solver.split('/')[0]}/train_val.prototxt"
    assert math.isclose(Policy(param, solver).rate(iteration), rate, rel_tol=1e-6)
