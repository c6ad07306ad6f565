"""Every model of models/ builds, with the published numbers of parameters and shapes of blobs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest

from benchmarks.nets import MODELS as FOLDER
from benchmarks.nets import read_net, with_inputs
from osucaffe.backends.cpu import Cpu
from osucaffe.graph.prototxt.filter import filter_layers, net_state
from osucaffe.net import Net
from osucaffe.proto import caffe_pb2, read_solver
from osucaffe.solvers.update.policy import Policy

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
        "conv2/norm2": (192, 56, 56), "pool2/3x3_s2": (192, 28, 28), "pool3/3x3_s2": (480, 14, 14),
        "pool4/3x3_s2": (832, 7, 7), "pool5/7x7_s1": (1024, 1, 1), "loss3/classifier": (1000,),
    }  # fmt: skip
    for module, (side, *channels) in INCEPTION.items():
        for branch, count in zip(BRANCHES, channels, strict=True):
            shapes[f"inception_{module}/{branch}"] = (count, side, side)
        total = channels[0] + channels[2] + channels[4] + channels[5]
        shapes[f"inception_{module}/output"] = (total, side, side)
    return shapes


class Published(NamedTuple):
    """What is known of a model."""

    inputs: dict[str, tuple[int, ...]]
    """What the databases bring: the shape of one item."""
    parameters: int
    """What is learned; the statistics of batch normalization are not."""
    shapes: dict[str, tuple[int, ...]]
    """Of one item's blobs: of nets whose number of parameters does not tell them. An inner product
    on an image has as many as it reads."""
    batches: tuple[int, int] | None = None
    """Of the deploy net and the training net, where they are published."""
    output: str = "prob"
    """Of the deploy net."""


def classifier(image: tuple[int, ...], parameters: int, *more: Any) -> Published:
    return Published({"data": image, "label": ()}, parameters, *more)


PAIR = {"data": (3, 48, 48), "label": (3, 96, 96)}
PUBLISHED = {
    "lenet": classifier((1, 28, 28), 431_080, {}, (64, 64)),
    "cifar10_quick": classifier((3, 32, 32), 145_578, {}, (1, 100)),
    "cifar10_full": classifier((3, 32, 32), 89_578, {"norm1": (32, 16, 16)}, (1, 100)),
    # One pools before it normalizes, one after that.
    "alexnet": classifier((3, 227, 227), 60_965_224, {"norm1": (96, 55, 55)}, (10, 256)),
    "caffenet": classifier((3, 227, 227), 60_965_224, {"norm1": (96, 27, 27)}, (10, 256)),
    "googlenet": classifier((3, 224, 224), 6_998_552, googlenet_shapes(), (10, 32)),
    # Simonyan and Zisserman 2015, table 2: 138 million
    "vgg16": classifier((3, 224, 224), 138_357_544, {}),
    # torchvision's, and the biases of conv1
    "resnet50": classifier((3, 224, 224), 25_557_032 + 64, {
        "conv1": (64, 112, 112), "pool1": (64, 56, 56), "res2c": (256, 56, 56),
        "res3d": (512, 28, 28), "res4f": (1024, 14, 14), "res5c": (2048, 7, 7),
    }),
    # Google's 4,652,008 and so on, and the wider kernels
    "efficientnet_lite0": classifier((3, 224, 224), 4_652_008 + 12_000, {"head": (1280, 7, 7)}),
    "efficientnet_lite1": classifier((3, 240, 240), 5_416_680 + 4_608, {"head": (1280, 8, 8)}),
    "efficientnet_lite2": classifier((3, 260, 260), 6_092_072 + 1_344, {"head": (1280, 9, 9)}),
    # Lim et al. 2017: 40.7 million, and 1.37 million
    "edsr": Published(PAIR, 40_729_603, {"upscale": (256, 96, 96), "output": (3, 96, 96)},
                      output="output"),
    "edsr_baseline": Published(PAIR, 1_369_859, {"upscale": (64, 96, 96), "output": (3, 96, 96)},
                               output="output"),
    "mnist_autoencoder": Published({"data": (1, 28, 28)}, 2_837_314, {"encode4": (30,)},
                                   output="decode1neuron"),
    "mnist_siamese": Published({"pair_data": (2, 28, 28), "sim": ()}, 431_102, {"feat": (2,)},
                               output="feat"),
}  # fmt: skip
CAFFES = [model for model, published in PUBLISHED.items() if published.batches]
HEAVY = ("vgg16", "edsr", "efficientnet_lite1", "efficientnet_lite2")
"""Built once only: half a gigabyte and more, or as another is."""
AUXILIARY = {"googlenet": 13_378_280 - 6_998_552}
"""Parameters of the classifiers that the deploy net leaves out."""
OUTPUTS = {
    "googlenet": {"loss1/loss1", "loss2/loss1", "loss3/loss3"},
    "googlenet TEST": {f"loss{n}/top-{k}" for n in (1, 2, 3) for k in (1, 5)},
}
"""Of training nets, and what else their test nets have, other than "loss" and "accuracy"."""


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


def check(net: Net, model: str, more: int = 0) -> None:
    """It has the model's parameters, so many more, and shapes of blobs."""
    assert learned(net) == PUBLISHED[model].parameters + more
    for name, shape in PUBLISHED[model].shapes.items():
        assert net.blobs[name].shape[1:] == shape, name


@pytest.mark.parametrize("model", PUBLISHED)
def test_deploy(model: str) -> None:
    inputs, _, _, batches, output = PUBLISHED[model]
    param = without_fillers(read_net(model, "deploy"))
    if batches:
        assert tuple(param.layer[0].input_param.shape[0].dim) == (batches[0], *inputs["data"])
    for layer in param.layer:
        if layer.type == "Input":
            layer.input_param.shape[0].dim[0] = 1
    net = Net(param, phase="TEST", backend=Cpu())
    check(net, model)
    assert (net.inputs, net.outputs) == (["data"], [output])


@pytest.mark.parametrize(
    ("model", "phase"),
    [(model, "TRAIN") for model in PUBLISHED if model not in HEAVY]
    + [(model, "TEST") for model in CAFFES],
)
def test_train_val(model: str, phase: str) -> None:
    net = Net(without_fillers(fed(model, phase, 1)), phase=phase, backend=Cpu())
    check(net, model, AUXILIARY.get(model, 0))
    if model in CAFFES:
        outputs = OUTPUTS.get(model, {"loss"})
        if phase == "TEST":
            outputs = outputs | OUTPUTS.get(f"{model} TEST", {"accuracy"})
        assert set(net.outputs) == outputs


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
        ("efficientnet_lite0/solver", 300_000, 0.025),
        ("efficientnet_lite1/solver", 300_000, 0.025),
        ("efficientnet_lite2/solver", 300_000, 0.025),
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
