"""VGG-16, ResNet-50, EDSR and two nets of MNIST have the published sizes, names and shapes."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks.nets import MODELS as FOLDER
from benchmarks.nets import read_net
from osucaffe.backends.cpu import Cpu
from osucaffe.data.databases.database import open_database, record_key, write_database
from osucaffe.data.databases.datum import make_datum, parse_datum, pixels
from osucaffe.graph.prototxt.filter import filter_layers, net_state
from osucaffe.net import Net
from osucaffe.proto import caffe_pb2, read_solver
from osucaffe.solvers.nets import testing_nets as choose_test_nets
from osucaffe.solvers.update.policy import Policy

MODELS = ("vgg16", "resnet50", "edsr", "edsr_baseline", "mnist_autoencoder", "mnist_siamese")
INPUTS: dict[str, dict[str, tuple[int, ...]]] = {
    "vgg16": {"data": (3, 224, 224), "label": ()},
    "resnet50": {"data": (3, 224, 224), "label": ()},
    "edsr": {"data": (3, 48, 48), "label": (3, 96, 96)},
    "edsr_baseline": {"data": (3, 48, 48), "label": (3, 96, 96)},
    "mnist_autoencoder": {"data": (1, 28, 28)},
    "mnist_siamese": {"pair_data": (2, 28, 28), "sim": ()},
}
"""The shapes of one item of what the databases bring."""
PARAMETERS = {
    "vgg16": 138_357_544,  # Simonyan and Zisserman 2015, table 2: 138 million
    "resnet50": 25_557_032 + 64,  # torchvision's, and the biases of conv1
    "edsr": 40_729_603,  # Lim et al. 2017: 40.7 million
    "edsr_baseline": 1_369_859,  # 1.37 million
    "mnist_autoencoder": 2_837_314,
    "mnist_siamese": 431_102,
}
"""What is learned; the statistics of batch normalization are not."""
SHAPES = {
    "vgg16": {
        **{f"conv{i}_{j}": (min(32 << i, 512), 448 >> i, 448 >> i)
           for i in range(1, 6) for j in range(1, 3 if i < 3 else 4)},
        **{f"pool{i}": (min(32 << i, 512), 224 >> i, 224 >> i) for i in range(1, 6)},
        "fc6": (4096,), "fc7": (4096,), "fc8": (1000,),
    },
    "resnet50": {
        "conv1": (64, 112, 112), "pool1": (64, 56, 56),
        "res2a_branch1": (256, 56, 56), "res2a_branch2a": (64, 56, 56), "res2c": (256, 56, 56),
        "res3a_branch2a": (128, 28, 28), "res3d": (512, 28, 28),
        "res4a_branch2b": (256, 14, 14), "res4f": (1024, 14, 14),
        "res5a_branch2c": (2048, 7, 7), "res5c": (2048, 7, 7),
        "pool5": (2048, 1, 1), "fc1000": (1000,),
    },
    "edsr": {
        "head": (256, 48, 48), "block32": (256, 48, 48), "body": (256, 48, 48),
        "upscale_conv": (1024, 48, 48), "upscale": (256, 96, 96), "output": (3, 96, 96),
    },
    "edsr_baseline": {
        "head": (64, 48, 48), "block16": (64, 48, 48), "body": (64, 48, 48),
        "upscale_conv": (256, 48, 48), "upscale": (64, 96, 96), "output": (3, 96, 96),
    },
    "mnist_autoencoder": {
        "flatdata": (784,), "encode1neuron": (1000,), "encode4": (30,), "decode1neuron": (784,),
    },
    "mnist_siamese": {"pool2": (50, 4, 4), "ip1": (500,), "ip2": (10,), "feat": (2,)},
}  # fmt: skip
PREDICTION = {
    "vgg16": "prob",
    "resnet50": "prob",
    "edsr": "output",
    "edsr_baseline": "output",
    "mnist_autoencoder": "decode1neuron",
    "mnist_siamese": "feat",
}
HEAVY = ("vgg16", "edsr")
"""Built once only: half a gigabyte and more."""


def load_script(path: Path) -> ModuleType:
    """A Python file of models/ as a module."""
    spec = importlib.util.spec_from_file_location(f"models_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fed(model: str, phase: str, batch: int, stage: str = "") -> caffe_pb2.NetParameter:
    """The train_val net in a phase, with Input layers in place of those that read databases."""
    net = read_net(model, "train_val")
    net.state.stage.extend(filter(None, [stage]))
    net = filter_layers(net, net_state(net, phase))
    for layer in net.layer:
        if layer.type in ("Data", "PatchData"):
            layer.type = "Input"
            for field in ("data_param", "patch_data_param", "transform_param"):
                layer.ClearField(field)
            for top in layer.top:
                layer.input_param.shape.add(dim=(batch, *INPUTS[model][top]))
    return net


def without_fillers(net: caffe_pb2.NetParameter) -> caffe_pb2.NetParameter:
    """The net with zeros as weights: drawing them takes most of the time."""
    for layer in net.layer:
        layer.convolution_param.ClearField("weight_filler")
        layer.inner_product_param.ClearField("weight_filler")
    return net


def learned(net: Net) -> int:
    """Numbers that a solver changes."""
    statistics = {layer.name for layer in net.layers if layer.type == "BatchNorm"}
    return sum(each.blob.data.count for each in net.parameters if each.layer not in statistics)


def check_shapes(net: Net, model: str) -> None:
    for name, shape in SHAPES[model].items():
        assert net.blobs[name].shape[1:] == shape, name


@pytest.mark.parametrize("model", MODELS)
def test_deploy(model: str) -> None:
    param = without_fillers(read_net(model, "deploy"))
    for layer in param.layer:
        if layer.type == "Input":
            layer.input_param.shape[0].dim[0] = 1
    net = Net(param, phase="TEST", backend=Cpu())
    assert learned(net) == PARAMETERS[model]
    assert net.inputs == ["data"]
    assert net.outputs == [PREDICTION[model]]
    check_shapes(net, model)


@pytest.mark.parametrize("model", [model for model in MODELS if model not in HEAVY])
def test_training_net(model: str) -> None:
    net = Net(without_fillers(fed(model, "TRAIN", 1)), phase="TRAIN", backend=Cpu())
    assert learned(net) == PARAMETERS[model]
    check_shapes(net, model)


@pytest.mark.parametrize("model", MODELS)
def test_deploy_shares_the_layers_of_train_val(model: str) -> None:
    """So that weights trained with one load into the other, by layer name."""
    trained = {layer.name: layer for layer in read_net(model, "train_val").layer}
    for layer in read_net(model, "deploy").layer:
        if layer.name != "data" and layer.name != "prob":
            assert layer == trained[layer.name]


def test_resnet50_has_the_names_of_the_published_weights() -> None:
    names = [layer.name for layer in read_net("resnet50", "deploy").layer]
    assert names[1:6] == ["conv1", "bn_conv1", "scale_conv1", "conv1_relu", "pool1"]
    assert names[6:18] == [
        "res2a_branch1", "bn2a_branch1", "scale2a_branch1",
        "res2a_branch2a", "bn2a_branch2a", "scale2a_branch2a", "res2a_branch2a_relu",
        "res2a_branch2b", "bn2a_branch2b", "scale2a_branch2b", "res2a_branch2b_relu",
        "res2a_branch2c",
    ]  # fmt: skip
    assert names[-6:] == ["scale5c_branch2c", "res5c", "res5c_relu", "pool5", "fc1000", "prob"]


@pytest.mark.parametrize("folder", ["resnet50", "edsr"])
def test_the_generators_write_the_committed_nets(folder: str) -> None:
    make = load_script(FOLDER / folder / "make.py")
    base = FOLDER if folder == "edsr" else FOLDER / folder
    files = make.nets()
    assert files
    for name, text in files.items():
        assert (base / name).read_text() == text, name


def test_edsr_adds_a_tenth_of_each_block() -> None:
    sums = [layer for layer in read_net("edsr", "deploy").layer if layer.type == "Eltwise"]
    blocks = [layer for layer in sums if layer.name != "body"]
    assert len(blocks) == 32
    assert all(list(layer.eltwise_param.coeff) == pytest.approx([1, 0.1]) for layer in blocks)
    (whole,) = (layer for layer in sums if layer.name == "body")
    assert not whole.eltwise_param.coeff


def test_edsr_computes_the_mean_absolute_error() -> None:
    net = Net(fed("edsr_baseline", "TRAIN", 1), phase="TRAIN", backend=Cpu(), inspectable=True)
    generator = np.random.default_rng(1)
    label = generator.normal(size=(1, 3, 96, 96))
    net.write("data", generator.normal(size=(1, 3, 48, 48)))
    net.write("label", label)
    net.forward()
    assert net.loss() == pytest.approx(np.abs(net.read("output") - label).mean(), rel=1e-5)


def test_edsr_reads_patches_of_images(tmp_path: Path) -> None:
    image = np.random.default_rng(1).integers(256, size=(3, 400, 390), dtype=np.uint8)
    write_database(tmp_path / "lmdb", [(record_key(0), make_datum(image, 0))])
    param = read_net("edsr_baseline", "train_val")
    for layer in param.layer:
        if layer.type == "PatchData":
            layer.patch_data_param.source = str(tmp_path / "lmdb")
    net = Net(param, phase="TEST", backend=Cpu())
    assert [net.blobs[name].shape for name in ("data", "output", "label")] == [
        (2, 3, 192, 192), (2, 3, 384, 384), (2, 3, 384, 384),
    ]  # fmt: skip
    param.layer[0].patch_data_param.batch_size = 1
    net = Net(param, phase="TRAIN", backend=Cpu())
    net.forward()
    net.layers[0].close()
    # Shrinking and enlarging by copies is nearer to the image than nothing is.
    low, high = net.read("data"), net.read("label")
    enlarged = low.repeat(2, axis=2).repeat(2, axis=3)
    assert np.abs(enlarged - high).mean() < 0.9 * np.abs(high).mean()
    assert 10 < net.loss() < 200


def test_siamese_branches_share_every_weight() -> None:
    net = Net(fed("mnist_siamese", "TRAIN", 2), phase="TRAIN", backend=Cpu(), inspectable=True)
    digit = np.random.default_rng(1).random((2, 1, 28, 28))
    net.write("pair_data", np.concatenate([digit, digit], axis=1))
    net.write("sim", np.ones(2))
    net.forward()
    assert np.any(net.read("feat"))
    np.testing.assert_array_equal(net.read("feat"), net.read("feat_p"))
    assert net.loss() == 0


def test_the_autoencoder_is_tested_on_either_set() -> None:
    solver = read_solver(FOLDER / "mnist_autoencoder" / "solver.prototxt")
    net = read_net("mnist_autoencoder", "train_val")
    choices = choose_test_nets(solver, "solver.prototxt", lambda path: net)
    sources = []
    for choice in choices:
        state = caffe_pb2.NetState(phase="TEST", stage=choice.stages)
        sources += [
            layer.data_param.source
            for layer in filter_layers(choice.param, state).layer
            if layer.type == "Data"
        ]
    assert sources == ["data/mnist/mnist_train_lmdb", "data/mnist/mnist_test_lmdb"]


@pytest.mark.parametrize(
    ("model", "iteration", "rate"),
    [
        ("vgg16", 369_999, 1e-5),
        ("resnet50", 150_000, 0.01),
        ("edsr", 199_999, 1e-4),
        ("edsr_baseline", 200_000, 5e-5),
        ("mnist_autoencoder", 10_000, 1e-3),
        ("mnist_siamese", 10_000, 0.01 * 2**-0.75),
    ],
)
def test_learning_rate(model: str, iteration: int, rate: float) -> None:
    param = read_solver(FOLDER / model / "solver.prototxt")
    assert param.net == f"models/{model}/train_val.prototxt"
    assert math.isclose(Policy(param, model).rate(iteration), rate, rel_tol=1e-6)


def test_pairs_of_digits(fixtures: Path, tmp_path: Path) -> None:
    pairs = load_script(FOLDER / "mnist_siamese" / "pairs.py").pairs
    source = fixtures / "formats" / "mnist200_lmdb"
    made = [parse_datum(memoryview(value)) for _, value in pairs(source, 1)]
    database = open_database(source)
    records = database.read(0, 200)
    digits = [parse_datum(memoryview(bytes(value))) for _, value in records]
    by_pixels = {pixels(digit).tobytes(): digit.label for digit in digits}
    assert len(made) == 200
    for pair, digit in zip(made, digits, strict=True):
        first, second = pixels(pair)
        assert first.tobytes() == pixels(digit).tobytes()
        assert pair.label == (by_pixels[second.tobytes()] == digit.label)
    assert 5 < sum(pair.label for pair in made) < 50
