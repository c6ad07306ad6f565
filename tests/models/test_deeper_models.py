"""What is special in ResNet-50, EDSR and two nets of MNIST: names, losses, data, what is shared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.nets import MODELS as FOLDER
from benchmarks.nets import read_net
from osucaffe.backends.cpu import Cpu
from osucaffe.data.databases.database import open_database, record_key, write_database
from osucaffe.data.databases.datum import make_datum, parse_datum, pixels
from osucaffe.graph.prototxt.filter import filter_layers
from osucaffe.net import Net
from osucaffe.proto import caffe_pb2, read_solver
from osucaffe.solvers.nets import testing_nets as choose_test_nets

from .scripts import load_script
from .test_models import fed


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
