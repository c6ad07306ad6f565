"""`osucaffe new`: what it writes trains as it stands, and begins with weights that are given."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from osucaffe.apps.photographs import adapt, catalogue
from osucaffe.backends.cpu import Cpu
from osucaffe.graph.prototxt.filter import filter_layers, net_state
from osucaffe.net import Net
from osucaffe.proto import (
    NetParameter,
    caffe_pb2,
    read_mean,
    read_net,
    read_solver,
    write_mean,
    write_weights,
)
from tests.cli.conftest import Cli, Result

from .photos import make_photos

pytest.importorskip("PIL")
CLASSIFIERS = {
    "lenet": ["ip2"],
    "cifar10_quick": ["ip2"],
    "cifar10_full": ["ip1"],
    "alexnet": ["fc8"],
    "caffenet": ["fc8"],
    "googlenet": ["loss1/classifier", "loss2/classifier", "loss3/classifier"],
    "vgg16": ["fc8"],
    "resnet50": ["fc1000"],
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Path:
    """A folder with data, 36 pixels wide, of 90 pictures of three classes."""
    folder = tmp_path_factory.mktemp("photos")
    make_photos(folder / "photos")
    done = Cli(folder, fixtures)("data", "folder", "photos", "--out=data", "--size=36")
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def new(cli: Cli, photos: Path) -> Cli:
    shutil.copytree(photos / "data", cli.folder / "data")
    return cli


def train(cli: Cli, done: Result, *more: str) -> str:
    """Run the command that `new` names last; what its log says."""
    assert done.code == 0, done.err
    program, *command = shlex.split(done.out.splitlines()[-1])
    assert program == "osucaffe"
    trained = cli.ok(*command, *more)
    return trained.err


def test_a_model_for_photos_trains_as_it_stands(new: Cli) -> None:
    log = train(new, new("new", "cifar10_quick", "--data=data", "--epochs=2", "--batch=16"))
    accuracies = re.findall(r"\baccuracy = (\S+)", log)
    assert len(accuracies) == 3  # at the start, and after each epoch
    out = new.folder / "cifar10_quick"
    solver = read_solver(out / "solver.prototxt")
    lines = (new.folder / "data" / "val.txt").read_text().splitlines()
    net = read_net(out / "train_val.prototxt")
    tested = net.layer[1]
    assert tested.data_param.batch_size * solver.test_iter[0] >= len(lines)
    assert net.layer[0].transform_param.crop_size == tested.transform_param.crop_size == 32
    assert (net.layer[0].transform_param.mirror, tested.transform_param.mirror) == (True, False)
    deploy = read_net(out / "deploy.prototxt")
    assert list(deploy.layer[0].input_param.shape[0].dim) == [1, 3, 32, 32]
    assert [layer.name for layer in deploy.layer if layer.type == "InnerProduct"] == ["ip1", "ip2"]
    assert deploy.layer[-1].type == "Softmax"
    assert (out / "labels.txt").read_text() == "bird\ncat\ndog\n"
    mean = read_mean(out / "mean.binaryproto")
    np.testing.assert_array_equal(mean, read_mean(new.folder / "data" / "mean.binaryproto"))
    assert list(out.glob("cifar10_quick_iter_*.caffemodel"))
    again = new("new", "cifar10_quick", "--data=data")
    assert "cifar10_quick/train_val.prototxt: already exists" in again.err


def test_a_net_is_fine_tuned(new: Cli) -> None:
    """Its own kind of net, told by the weights; then once more, by the files beside them."""
    net = read_net(catalogue.FOLDER / "cifar10_quick" / "deploy.prototxt")
    learned = Net(net, phase="TEST", backend=Cpu(), seed=3).to_proto()
    write_weights(new.folder / "small.caffemodel", learned)
    done = new("new", "finetune", "--data=data", "--from=small.caffemodel", "--epochs=1")
    log = train(new, done)
    assert "not in the file: ip2_new; unused: ip2" in log
    out = new.folder / "finetune"
    made = read_net(out / "train_val.prototxt")
    (last,) = adapt.classifiers(made)
    assert [each.lr_mult for each in last.param] == [10, 20]
    assert last.inner_product_param.num_output == 3
    assert read_solver(out / "solver.prototxt").base_lr == pytest.approx(0.001)
    built = Net(read_net(out / "deploy.prototxt"), phase="TEST", backend=Cpu(), seed=1)
    weights = {each.name: each.parameters[0] for each in built.layers if each.parameters}
    assert not built.backend.read(weights["ip2_new"].data).any()
    assert built.backend.read(weights["ip1"].data).any()
    trained = next(out.glob("*.caffemodel"))
    done = new("new", "finetune", "--data=data", f"--from={trained}", "--out=more", "--epochs=1")
    assert "not in the file: ip2_new2; unused: ip2_new" in train(new, done)
    assert read_net(new.folder / "more" / "deploy.prototxt").layer[-2].name == "ip2_new2"


def test_layers_of_other_shapes_begin_anew(new: Cli) -> None:
    """A net of grey digits, with a scale, for coloured photographs; then one that has learned on
    smaller ones."""
    grey = read_net(catalogue.FOLDER / "lenet" / "deploy.prototxt")
    learned = Net(grey, phase="TEST", backend=Cpu(), seed=3).to_proto()
    write_weights(new.folder / "digits.caffemodel", learned)
    command = ("new", "finetune", "--data=data", "--epochs=1")
    done = new(*command, "--from=digits.caffemodel")
    log = train(new, done)
    assert 'layer "conv1": (20, 3, 5, 5), (20,) here, (20, 1, 5, 5), (20,) in the file' in done.err
    assert "not in the file: conv1_new, ip2_new; unused: conv1, ip2" in log
    made = read_net(new.folder / "finetune" / "train_val.prototxt")
    rates = {
        layer.name: [each.lr_mult for each in layer.param] for layer in made.layer if layer.param
    }
    again, kept = [10, 20], [1, 2]
    assert rates == {"conv1_new": again, "conv2": kept, "ip1": kept, "ip2_new": again}
    assert made.layer[0].transform_param.scale == pytest.approx(1 / 256)

    del grey.layer[0].input_param.shape[:]
    grey.layer[0].input_param.shape.add(dim=[1, 3, 24, 24])
    other = Net(grey, phase="TEST", backend=Cpu(), seed=3).to_proto()
    write_weights(new.folder / "small.caffemodel", other)
    done = new(*command, "--from=small.caffemodel", "--model=lenet", "--out=small")
    assert 'layer "ip1": (500, 800), (500,) here, (500, 450), (500,) in the file' in done.err
    assert "conv1" not in done.err


def test_weights_begin_with_the_mean_that_they_know(new: Cli) -> None:
    net = read_net(catalogue.FOLDER / "cifar10_quick" / "deploy.prototxt")
    learned = Net(net, phase="TEST", backend=Cpu(), seed=3).to_proto()
    del learned.layer[0]
    data = caffe_pb2.LayerParameter(name="data", type="Data", top=["data", "label"])
    data.transform_param.mean_file = "long/ago/imagenet_mean.binaryproto"
    data.transform_param.scale = 0.5
    learned.layer.insert(0, data)
    write_weights(new.folder / "small.caffemodel", learned)
    command = ("new", "finetune", "--data=data", "--from=small.caffemodel", "--model=cifar10_quick")

    def transform(out: str) -> caffe_pb2.TransformationParameter:
        new.ok(*command, f"--out={out}")
        return read_net(new.folder / out / "train_val.prototxt").layer[0].transform_param

    found = transform("imagenet")
    assert list(found.mean_value) == [104, 117, 123]
    assert found.scale == 0.5
    write_mean(new.folder / "imagenet_mean.binaryproto", np.arange(3.0)[:, None, None] + 9)
    assert list(transform("beside").mean_value) == [9, 10, 11]
    mean = np.random.default_rng(1).random((3, 36, 36)).astype(np.float32)
    write_mean(new.folder / "imagenet_mean.binaryproto", mean)
    assert transform("image").mean_file == "image/mean.binaryproto"
    np.testing.assert_array_equal(read_mean(new.folder / "image" / "mean.binaryproto"), mean)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_model_that_classifies(name: str) -> None:
    net = read_net(catalogue.FOLDER / name / "train_val.prototxt")
    assert [layer.name for layer in adapt.classifiers(net)] == CLASSIFIERS[name]
    assert adapt.set_classes(net, 4, {*CLASSIFIERS[name]}) == [
        f"{x}_new" for x in CLASSIFIERS[name]
    ]
    assert not any(each in layer.bottom for layer in net.layer for each in CLASSIFIERS[name])
    transform = caffe_pb2.TransformationParameter(mirror=True, crop_size=adapt.crop_of(net))
    made = adapt.for_training(net, adapt.Records(("a", "b"), (8, 5), transform))
    for phase, source in (("TRAIN", "a"), ("TEST", "b")):
        layers = filter_layers(made, net_state(made, phase)).layer
        assert [layer.data_param.source for layer in layers if not layer.bottom] == [source]
        assert all(layer.accuracy_param.top_k < 4 for layer in layers)
    deploy = adapt.for_prediction(made, (1, 3, 8, 8))
    published = read_net(catalogue.FOLDER / name / "deploy.prototxt")
    old = [layer.name for layer in published.layer]
    new = [layer.name.removesuffix("_new") for layer in deploy.layer]
    assert new[:-1] == old[: len(new) - 1]


def test_a_layer_that_is_learned_anew_does_not_begin_as_the_old_one_did() -> None:
    """Both runs have the seed of the published solver, and here as many classes."""
    old = read_net(catalogue.FOLDER / "lenet" / "deploy.prototxt")
    tuned = caffe_pb2.NetParameter()
    tuned.CopyFrom(old)
    adapt.set_classes(tuned, 10, {"ip2"})
    weights = []
    for param, name in ((old, "ip2"), (tuned, "ip2_new")):
        net = Net(param, phase="TEST", backend=Cpu(), seed=1)
        (layer,) = (each for each in net.layers if each.name == name)
        weights.append(net.backend.read(layer.parameters[0].data).ravel())
    assert abs(np.corrcoef(*weights)[0, 1]) < 0.05  # of 5,000 numbers: 0.014 to be expected


def test_a_deploy_net_becomes_one_that_trains() -> None:
    net = read_net(catalogue.FOLDER / "lenet" / "deploy.prototxt")
    adapt.set_classes(net, 3, {"ip2"})
    records = adapt.Records(("a", "b"), (8, 5), caffe_pb2.TransformationParameter())
    made = adapt.for_training(net, records)
    assert [layer.type for layer in made.layer[-2:]] == ["SoftmaxWithLoss", "Accuracy"]
    assert list(made.layer[-2].bottom) == ["ip2_new", "label"]
    assert not any(layer.type in ("Input", "Softmax") for layer in made.layer)


def test_what_will_not_do_is_said(new: Cli) -> None:
    net = read_net(catalogue.FOLDER / "lenet" / "deploy.prototxt")
    weights = NetParameter(name="x")
    for layer in net.layer:
        if layer.type in ("Convolution", "InnerProduct"):
            weights.layer.add(name=layer.name).blobs.add(data=[1])
    write_weights(new.folder / "other.caffemodel", weights)
    alex = NetParameter(name="x")
    for name in (*(f"conv{i}" for i in range(1, 6)), "fc6", "fc7", "fc8"):
        alex.layer.add(name=name).blobs.add(data=[1])
    write_weights(new.folder / "alex.caffemodel", alex)
    tune = ("finetune", "--data=data")
    for options, expected in [
        (["lennet", "--data=data"], "no model named 'lennet': did you mean lenet?"),
        (["edsr", "--data=data"], "edsr: has no layer that gives classes scores"),
        (["lenet", "--data=photos"], "takes what `osucaffe data folder PHOTOS --out photos` makes"),
        (["alexnet", "--data=data"], "36 pixels wide there, but the net takes 227: make them with "
         "osucaffe data folder --size 259"),
        (["finetune"], "finetune needs --data DIR, the photographs, and --from FILE"),
        (["lenet", "--from=x"], "--from, --model and --head are for `osucaffe new finetune`"),
        ([*tune, "--from=alex.caffemodel"], "alex.caffemodel: may be of alexnet or caffenet: name"),
        ([*tune, "--from=other.caffemodel", "--model=cifar10_quick"], "has nothing for its layers"),
    ]:  # fmt: skip
        assert expected in new.fails("new", *options).err


def test_without_data_it_is_the_model_itself(cli: Cli) -> None:
    done = cli.ok("new", "lenet")
    assert "osucaffe train --solver lenet/solver.prototxt" in done.out
    assert read_solver(cli.folder / "lenet" / "solver.prototxt").net == "lenet/train_val.prototxt"
