"""Layers that share a name, or have none: each is its place in the net, as in C++ Caffe, and the
names change nothing that is computed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.nets import input_shape, read_net, with_inputs
from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.graph.passes import pipeline
from osucaffe.net import Net
from osucaffe.proto import NetParameter, parse_text, read_weights, write_weights

from ..layers.nets import build, error
from ..layers.test_gradients import CASES
from ..layers.test_planned import surrounded
from .passes.test_batch_norm import residual_net

FIXTURES = Path(__file__).parent.parent / "fixtures" / "caffe"
COMPUTED = ["crop", "dup_split", "losses", "mixed", "noname", "noname_split", "params",
            "params_shapes", "power", "relu_inplace"]  # fmt: skip
"""Nets whose outputs and gradients C++ Caffe has computed (dup_*.npz)."""


class Fixture:
    """The arrays of a file: `kind:blob`, and `kind:layer:index` of parameters."""

    def __init__(self, name: str) -> None:
        with np.load(FIXTURES / f"dup_{name}.npz") as arrays:
            self.arrays = {key: arrays[key] for key in arrays.files}
        self.text = str(self.arrays["prototxt"])
        if "caffemodel" in self.arrays:
            self.model = NetParameter.FromString(self.arrays["caffemodel"].tobytes())

    def kind(self, kind: str) -> dict[str, np.ndarray]:
        return {
            key.split(":", 1)[1]: value
            for key, value in self.arrays.items()
            if key.startswith(kind + ":")
        }

    def build(self, **options: Any) -> Net:
        return build(self.text, Cpu(), phase=str(self.arrays["phase"]), **options)


def parameter(net: Net, key: str) -> Any:
    """The blob that `layer:index` says: the layer by its place in the net."""
    layer, index = map(int, key.split(":"))
    return net.layers[layer].parameters[index]


@pytest.mark.parametrize("inspectable", [True, False], ids=["inspectable", "planned"])
@pytest.mark.parametrize("name", COMPUTED)
def test_caffe_computes_the_same(name: str, inspectable: bool) -> None:
    fixture = Fixture(name)
    net = fixture.build(inspectable=inspectable)
    assert net.layer_names == fixture.arrays["names"].tolist()
    for blob, values in fixture.kind("in").items():
        net.write(blob, values)
    for key, values in fixture.kind("layerparam").items():
        net.backend.write(parameter(net, key).data, values)
    net.forward()
    seen = fixture.kind("top")
    if not inspectable:  # other memory may be used again
        seen = {blob: values for blob, values in seen.items() if blob in net.outputs}
    errors = {blob: error(net.read(blob), values) for blob, values in seen.items()}
    if inspectable:
        for blob, values in fixture.kind("topdiff").items():
            net.backend.write(net.blobs[blob].diff, values)
        net.backward()
        for blob, values in fixture.kind("bottomdiff").items():
            errors[f"diff {blob}"] = error(net.backend.read(net.blobs[blob].diff), values)
        for key, values in fixture.kind("layerparamdiff").items():
            errors[key] = error(net.backend.read(parameter(net, key).diff), values)
    assert errors
    assert max(errors.values()) < 1e-5, errors


def test_two_layers_still_cannot_make_one_top() -> None:
    with pytest.raises(UserError, match=r'already makes "loss"'):
        Fixture("losses_same_top").build()


# -- weights -------------------------------------------------------------------------------------


def loaded(fixture: Fixture) -> dict[str, np.ndarray]:
    net = fixture.build()
    net.load(fixture.model)
    return {
        f"{place}:{index}": net.backend.read(blob.data)
        for place, layer in enumerate(net.layers)
        for index, blob in enumerate(layer.parameters)
    }


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("params_load", {"1": 1, "2": 2}),
        ("params_load_shapes", {"1": 1, "2": 2}),
        ("noname_load", {"1": 1, "3": 3}),
        ("noname_input_load", {"1": 1}),
        ("mixed_load", {"2": 2}),
        ("mixed_load2", {"1": 1}),
        ("params_load_one", {"1": 1}),  # the second keeps its filler's values
        ("params_load_dupsource", {"1": 1}),
        ("power_load", {}),
        ("noname_noparam_load", {}),
    ],
)
def test_layers_of_one_name_take_weights_in_their_order(name: str, sources: dict[str, int]) -> None:
    """C++ Caffe gives those of all to the first layer of the name, so that a net gets back another
    one's weights, or dies: `loaded` and `fatal` in these files."""
    fixture = Fixture(name)
    wanted = fixture.kind("layerparam")
    for place, source in sources.items():
        for index, blob in enumerate(fixture.model.layer[source].blobs):
            values = np.array(blob.data, np.float32).reshape(tuple(blob.shape.dim))
            wanted[f"{place}:{index}"] = values
    found = loaded(fixture)
    assert found.keys() == wanted.keys()
    for key, values in wanted.items():
        assert np.array_equal(found[key], values), key
    theirs = fixture.kind("loaded")
    if name in ("params_load", "noname_load"):
        last = max(source for source in sources.values())
        assert not np.array_equal(theirs["1:0"], found["1:0"])
        assert np.array_equal(theirs["1:0"], found[f"{last}:0"])
    elif name == "params_load_one":
        assert {key: values.tolist() for key, values in theirs.items()} == {
            key: values.tolist() for key, values in found.items()
        }


@pytest.mark.parametrize("name", ["params", "noname", "mixed"])
def test_a_net_gets_its_own_weights_back(name: str, tmp_path: Path) -> None:
    fixture = Fixture(name)
    net, other = fixture.build(), fixture.build()
    draw = np.random.default_rng(1)
    for each in net.parameters:
        net.backend.write(each.blob.data, draw.standard_normal(each.blob.shape))
    write_weights(tmp_path / "net.caffemodel", net.to_proto())
    other.load(read_weights(tmp_path / "net.caffemodel"))
    for mine, its in zip(net.parameters, other.parameters, strict=True):
        assert np.array_equal(net.backend.read(mine.blob.data), net.backend.read(its.blob.data))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("params", r'net.h5: layer "ip" \(InnerProduct\), name: another layer has it too: HDF5'),
        ("noname", r'net.h5: unnamed layer \(InnerProduct, top "y"\): HDF5 files keep weights by'),
    ],
)
def test_hdf5_needs_names(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        write_weights(tmp_path / "net.h5", Fixture(name).build().to_proto())
    assert not list(tmp_path.iterdir())
    net = Fixture("power").build()  # nobody needs the names of layers without weights
    write_weights(tmp_path / "net.h5", net.to_proto())
    assert [layer.name for layer in read_weights(tmp_path / "net.h5").layer] == ["in_x", "p"]


def test_test_nets_share_in_order_and_not_by_guess() -> None:
    fixture = Fixture("params")
    net = fixture.build(gradients=True)
    test = fixture.build(share=net)
    assert [each.blob for each in test.parameters] == [each.blob for each in net.parameters]
    assert len({id(each.blob) for each in test.parameters}) == 4
    one = fixture.text[: fixture.text.rindex("layer {")]
    with pytest.raises(UserError, match=r'"ip" .*, name: 2 layers .* name, and 1 here: give'):
        build(one, Cpu(), share=net)


# -- the names of any net ------------------------------------------------------------------------

NAMES = ["a", "b", "data", "loss"]


def renamed(param: NetParameter, seed: int) -> NetParameter:
    """The net with layers renamed, unnamed and given each other's names."""
    draw = random.Random(seed)
    names = [layer.name for layer in param.layer]
    other = NetParameter()
    other.CopyFrom(param)
    for layer in other.layer:
        match draw.randrange(4):
            case 0:
                layer.ClearField("name")
            case 1:
                layer.name = draw.choice(NAMES)
            case 2:
                layer.name = draw.choice(names)
    return other


def feed(net: Net, options: dict[str, Any]) -> None:
    draw = np.random.default_rng(7)
    for name in net.inputs:
        shape = net.blobs[name].shape
        values = draw.standard_normal(shape)
        if name in options["labels"]:
            values = draw.integers(options["labels"][name], size=shape)
            values[: options["begin"]] = 0
        net.write(name, np.abs(values) + 0.1 if options["positive"] else values)


def by_layer(net: Net) -> None:
    net.forward()
    net.backward()


def as_one(net: Net) -> None:
    net.as_step()()


def with_marks(net: Net) -> None:
    """As ranks train: something runs ahead of each layer's forward, and behind its backward."""
    seen: list[tuple[str, int]] = []
    places = range(len(net.layers))
    net.as_step(
        before={place: lambda place=place: seen.append(("f", place)) for place in places},
        after={place: lambda place=place: seen.append(("b", place)) for place in places},
        enqueues=False,
    )()
    forward, backward = [("f", place) for place in places], [("b", place) for place in places]
    assert seen == forward + backward[::-1]


MODES: dict[str, tuple[dict[str, bool], Callable[[Net], None]]] = {
    "inspectable": ({"inspectable": True}, by_layer),
    "planned": ({}, by_layer),
    "unfused": ({}, by_layer),
    "as one": ({}, as_one),
    "with marks": ({}, with_marks),
}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a net is built and run."""
    if request.param == "unfused":
        unfused = tuple(each for each in pipeline.COMPILE if each.inspectable)
        monkeypatch.setattr(pipeline, "COMPILE", unfused)
    return str(request.param)


def results(
    param: NetParameter, backend: Any, mode: str, options: dict[str, Any], first: list[np.ndarray]
) -> Iterator[np.ndarray]:
    """The loss, the outputs, and each parameter's gradient, in the order of the layers.

    first: the parameters' first values, which names do change; the net's own where there are none.
    """
    settings, run = MODES[mode]
    net = Net(param, phase="TRAIN", backend=backend, seed=1, **settings)
    first[:] = first or [backend.read(each.blob.data) for each in net.parameters]
    for each, values in zip(net.parameters, first, strict=True):
        backend.write(each.blob.data, values)
    feed(net, options)
    run(net)
    yield np.float32(net.loss())
    for node in net.nodes:
        for blob in node.top:
            if blob.name in net.outputs or net.inspectable:
                yield net.read(blob.name)
    for each in net.parameters:
        yield net.backend.read(each.blob.diff)


def check(param: NetParameter, backend: Any, mode: str, options: dict[str, Any]) -> None:
    """The same bits whatever the names, which differ from mode to mode; on a GPU, where a net
    differs from itself, nearly."""
    first: list[np.ndarray] = []
    wanted = list(results(param, backend, mode, options, first))
    exact = backend.name == "cpu" or all(
        map(np.array_equal, wanted, results(param, backend, mode, options, first))
    )
    other = renamed(param, seed=[*MODES].index(mode))
    found = list(results(other, backend, mode, options, first))
    assert len(found) == len(wanted)
    for mine, its in zip(wanted, found, strict=True):
        assert np.array_equal(mine, its) if exact else error(its, mine) < 1e-5


PLAIN = {"labels": {}, "positive": False, "begin": False}
BACKENDS = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def make_backend(name: str) -> Any:
    if name == "cpu":
        return Cpu()
    from osucaffe.backends.cuda import Cuda

    return Cuda()


def check_cases(cases: Sequence[Any], backend: Any, mode: str) -> None:
    for case in cases:
        _, shapes, text, options = case.values
        param = parse_text(surrounded(shapes, text, options["labels"]), NetParameter)
        try:
            check(param, backend, mode, options)
        except AssertionError as error:
            raise AssertionError(f"{case.id}: {error}") from None


def test_names_change_nothing_of_any_layer(mode: str) -> None:
    """Each layer in one of the modes, each mode with the layers of every fifth row."""
    check_cases(CASES[[*MODES].index(mode) :: len(MODES)], Cpu(), mode)


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_names_change_nothing_of_any_layer_in_any_mode(mode: str, backend: str) -> None:
    check_cases(CASES, make_backend(backend), mode)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "model", ["lenet", "cifar10_full", "mnist_autoencoder", "mnist_siamese", "residual"]
)
def test_names_change_nothing_of_a_model(model: str, mode: str, backend: str) -> None:
    if model == "residual":
        check(parse_text(residual_net(""), NetParameter), make_backend(backend), mode, PLAIN)
        return
    shapes = {"data": input_shape(model), "pair_data": (2, 28, 28)}
    param = with_inputs(read_net(model, "train_val"), shapes, 2)
    labels = {"label": 10, "sim": 2}
    check(param, make_backend(backend), mode, PLAIN | {"labels": labels})
