"""The net: how it is built, what it shares, which gradients it computes, how it saves weights."""

import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.graph import weights
from osucaffe.net import Net
from osucaffe.proto import read_weights, write_weights
from tests.layers import nets

INPUT = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } } }
"""
FILLER = 'weight_filler { type: "gaussian" std: 1 }'


def ip(name: str, bottom: str, top: str, outputs: int = 3, more: str = "") -> str:
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{top}" '
        f"inner_product_param {{ num_output: {outputs} {FILLER} }} {more} }}\n"
    )


def loss(bottom: str, more: str = "") -> str:
    return (
        f'layer {{ name: "loss_{bottom}" type: "SoftmaxWithLoss" bottom: "{bottom}" '
        f'bottom: "label" top: "loss_{bottom}" {more} }}\n'
    )


def two(first: str = "", second: str = "", *, outputs: int = 3) -> str:
    """Two inner products, a and b, one on the other, with these settings, and a loss."""
    return INPUT + ip("a", "x", "h", outputs, first) + ip("b", "h", "y", 3, second) + loss("y")


NAMED = 'param { name: "w" } param { name: "b" }'
FROZEN = "param { lr_mult: 0 } param { lr_mult: 0 }"


def build(text: str, **options) -> Net:
    return nets.build(text, **{"phase": "TRAIN"} | options)


def feed(net: Net) -> Net:
    random = np.random.default_rng(2)
    net.write("x", random.standard_normal((4, 3)).astype(np.float32))
    net.write("label", np.array([0, 1, 2, 1], np.float32))
    return net


def gradients(net: Net) -> dict[str, np.ndarray]:
    feed(net).forward()
    net.backward()
    return {p.name: net.backend.read(p.blob.diff) for p in net.parameters}


def test_first_values_are_drawn_by_layer_name():
    """Wherever the layer stands; layers of one name, or of none, each have their own."""

    def drawn(*names: str) -> dict[str, list[np.ndarray]]:
        bottoms = ["x", *(f"y{i}" for i in range(len(names)))]
        text = "".join(ip(n, x, y) for n, x, y in zip(names, bottoms, bottoms[1:], strict=False))
        net, found = build(INPUT + text), {}
        for layer in net.layers[2:]:
            values = net.backend.read(layer.parameters[0].data)
            found.setdefault(layer.name, []).append(values)
        return found

    whole = drawn("a", "b", "a", "", "c", "")
    for name, values in drawn("c", "", "a", "b").items():
        np.testing.assert_array_equal(values[0], whole[name][0])
    every = np.concatenate([np.ravel(each) for values in whole.values() for each in values])
    assert len(np.unique(every)) == 6 * 9


def test_parameters_that_memory_cannot_hold_are_refused_before_they_are_drawn(monkeypatch):
    text = INPUT + ip("big", "x", "y", 25_000)
    free = 3 * 4 * 100_000  # first values, parameters, gradients
    monkeypatch.setattr(weights, "available_memory", lambda: free)
    build(text)
    free -= 1
    with pytest.raises(UserError, match=r'100,000 parameters take .* is layer "big"'):
        build(text)
    build(text, phase="TEST")


def test_outputs_are_named_in_alphabetical_order():
    net = build(INPUT + ip("b", "x", "zz") + ip("a", "x", "aa"))
    assert net.outputs == ["aa", "label", "zz"]
    assert net.inputs == ["x", "label"]


POWER = 'layer { name: "power" type: "Power" bottom: "%s" top: "shown" }'


@pytest.mark.parametrize("weight", ["", "loss_weight: 2"])
def test_a_layer_that_looks_at_the_loss_changes_nothing(weight):
    text = INPUT + ip("ip", "x", "y") + loss("y", weight)
    alone, looked_at = build(text), build(text + POWER % "loss_y")
    wanted, found = gradients(alone), gradients(looked_at)
    assert looked_at.loss() == alone.loss()
    for name, gradient in wanted.items():
        assert np.abs(gradient).max() > 0
        np.testing.assert_array_equal(found[name], gradient)


def test_each_top_keeps_its_loss_weight():
    text = (
        INPUT
        + ip("ip", "x", "y")
        + (
            'layer { name: "slice" type: "Slice" bottom: "y" top: "a" top: "b" '
            "slice_param { slice_point: 1 } loss_weight: 0.5 loss_weight: 2 }"
        )
    )
    alone, looked_at = build(text), build(text + POWER % "a")
    wanted, found = gradients(alone), gradients(looked_at)
    assert looked_at.loss() == pytest.approx(alone.loss())
    for name, gradient in wanted.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-6, atol=1e-7)


def test_bad_loss_weights_and_shapes_are_refused():
    text = INPUT + ip("ip", "x", "y", more="loss_weight: 1 loss_weight: 2") + loss("y")
    with pytest.raises(UserError, match="loss_weight: has 2 values for 1 tops"):
        build(text)
    for kind, message in [
        ("Input", r'top: "d" would have shape \({},\): each extent must be at least 1'),
        ("DummyData", r"dummy_data_param.shape: a blob would have shape \({},\): each extent"),
    ]:
        settings = {"Input": "input_param", "DummyData": "dummy_data_param"}[kind]
        for dim in (-4, 0):
            text = f'layer {{ type: "{kind}" top: "d" {settings} {{ shape {{ dim: {dim} }} }} }}'
            with pytest.raises(UserError, match=message.format(dim)):
                build(text)


@pytest.mark.parametrize("suffix", ["caffemodel", "caffemodel.h5"])
def test_shared_parameters_are_saved_and_loaded(suffix, tmp_path):
    saved, fresh = build(two(NAMED, NAMED)), build(two(NAMED, NAMED), seed=5)
    write_weights(tmp_path / f"model.{suffix}", saved.to_proto())
    fresh.load(read_weights(tmp_path / f"model.{suffix}"))
    for one, other in zip(saved.parameters, fresh.parameters, strict=True):
        values = saved.backend.read(one.blob.data)
        assert np.array_equal(values, fresh.backend.read(other.blob.data))


def test_permissive_sharing_needs_equal_counts_only():
    """6 inputs to 4 outputs and 4 to 6: the weights have one count and two shapes."""
    head = INPUT.replace("dim: 3", "dim: 6")

    def text(mode: str) -> str:
        spec = f'param {{ name: "w" share_mode: {mode} }}'
        return head + ip("a", "x", "h", 4, spec) + ip("b", "h", "y", 6, spec) + loss("y")

    net = build(text("PERMISSIVE"))
    a, b = net.layers[2].parameters[0], net.layers[3].parameters[0]
    net.backend.write(a.data, np.arange(24, dtype=np.float32).reshape(4, 6))
    assert np.array_equal(net.backend.read(b.data), np.arange(24).reshape(6, 4))
    with pytest.raises(UserError, match=r'"b".*\(6, 4\).*"a".*\(4, 6\)'):
        build(text("STRICT"))


def test_users_of_a_shared_parameter_must_agree_on_its_multipliers():
    spec = 'param { name: "w" lr_mult: %d }'
    assert build(two(spec % 2, spec % 2)).parameters[0].lr_mult == 2
    with pytest.raises(UserError, match=r'"b".*lr_mult 2, not 3'):
        build(two(spec % 2, spec % 3))


def test_which_layers_get_gradients_and_pass_them_on():
    found = gradients(build(two("", FROZEN)))
    assert np.abs(found["a/0"]).max() > 0
    assert np.abs(found["b/0"]).max() == np.abs(found["b/1"]).max() == 0
    net = build(two(FROZEN))  # what stands above all that learns is not run backward
    assert [node.layer.name for node in net.nodes if node.backward] == ["b", "loss_y"]
    forced = build("force_backward: true " + two(FROZEN))
    assert all(node.backward for node in forced.nodes)
    assert np.abs(gradients(forced)["a/0"]).max() > 0
    found = gradients(build(two("", "propagate_down: false")))
    assert np.abs(found["a/0"]).max() == 0
    assert np.abs(found["b/0"]).max() > 0


def test_a_test_net_shares_weights_and_memory():
    text = INPUT + ip("ip", "x", "y") + loss("y")
    train = build(text)
    test = build(text, phase="TEST", share=train)
    assert test.pool is train.pool
    weights = np.ones((3, 3), np.float32)
    train.backend.write(train.parameters[0].blob.data, weights)
    assert np.array_equal(test.backend.read(test.parameters[0].blob.data), weights)
    feed(train).forward()
    feed(test).forward()
    assert test.loss() == pytest.approx(train.loss())


def test_parameters_lie_in_backward_order():
    net = build(two())
    assert [p.name for _, _, p in net.arena.segments] == ["b/1", "b/0", "a/1", "a/0"]
    stops = [stop for _, stop, _ in net.arena.segments]
    assert [start for start, _, _ in net.arena.segments] == [0, *stops[:-1]]
    feed(net).forward()
    seen: list[str] = []
    net.backward(after=lambda index: seen.append(net.layer_names[index]))
    assert [name for name in seen if name in "ab"] == ["b", "a"]


@pytest.mark.parametrize("enqueues", [True, False])
def test_gradients_are_cleared_unless_they_are_kept(enqueues):
    """By the step itself, also where something runs behind each layer's backward."""
    once = gradients(build(two()))
    net = feed(build(two(), accumulate=True))
    after = dict.fromkeys(range(len(net.layers)), lambda: None) if not enqueues else {}
    steps = [net.as_step(accumulate=kept, after=after, enqueues=enqueues) for kept in (False, True)]
    for step, times in (steps[0], 1), (steps[0], 1), (steps[1], 2), (steps[0], 1):
        step()
        for parameter in net.parameters:
            found = net.backend.read(parameter.blob.diff)
            np.testing.assert_allclose(found, times * once[parameter.name], rtol=1e-6)


def test_a_net_clears_the_gradients_that_it_shares():
    once = gradients(build(two()))
    net = build(two(), accumulate=True)
    shared = feed(build(two(), share=net, accumulate=True))
    for _ in range(2):
        shared.forward()
        shared.backward()
    for parameter in net.parameters:
        found = net.backend.read(parameter.blob.diff)
        np.testing.assert_array_equal(found, once[parameter.name])


def test_weights_are_loaded_if_all_fit_or_not_at_all():
    net, other = build(two()), build(two(outputs=4).replace('"a"', '"c"').replace('"b"', '"a"'))
    before = [net.backend.read(each.blob.data) for each in net.parameters]
    weights = build(two(), seed=7).to_proto()
    weights.layer[-2].CopyFrom(other.to_proto().layer[-2])  # "a" fits, what follows does not
    weights.layer[-2].name = "b"
    with pytest.raises(UserError, match="to train this layer from scratch, rename it"):
        net.load(weights)
    for parameter, values in zip(net.parameters, before, strict=True):
        np.testing.assert_array_equal(net.backend.read(parameter.blob.data), values)


def test_weights_are_copied_by_layer_name():
    source = build(two())
    target = build(two().replace('name: "b"', 'name: "new"'), seed=7)
    before = target.backend.read(target.layers[3].parameters[0].data)
    target.load(source.to_proto())
    copied = target.backend.read(target.layers[2].parameters[0].data)
    assert np.array_equal(copied, source.backend.read(source.layers[2].parameters[0].data))
    assert np.array_equal(before, target.backend.read(target.layers[3].parameters[0].data))
    with pytest.raises(UserError, match=r'"a".*\(5, 3\).*\(3, 3\).*rename'):
        build(two(outputs=5)).load(source.to_proto())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('layer { name: "a" type: "Convolutoin" }', r'"Convolutoin" \(did you mean "Convolution"'),
        ('layer { name: "a" type: "ReLU" top: "y" }', r'"a" \(ReLU\), bottom: needs 1.*it 0'),
        (ip("a", "x", "y") + ip("b", "x", "y"), r'"b".*already makes "y"'),
        (ip("a", "x", "x"), r'"a".*in place'),
        (ip("", "x", "y", 3, "loss_weight: 1 loss_weight: 1"), r'unnamed .*, top "y"\), loss'),
        (ip("a", "x", "y", 3, "propagate_down: true propagate_down: true"), "2 values for 1 bott"),
        (ip("a", "x", "y", 3, "loss_weight: 1 loss_weight: 1"), "2 values for 1 tops"),
        (ip("a", "x", "y").replace("gaussian", "gausian"), r'"a".*unknown filler "gausian"'),
    ],
)  # fmt: skip
def test_bad_nets_name_the_layer(text, message):
    with pytest.raises(UserError, match=message):
        build(INPUT + text)


def test_what_a_layer_keeps_outlives_one_behind_it_that_reshapes_the_net_while_it_runs() -> None:
    image = "shape { dim: 1 dim: 2 dim: 4 dim: 4 }"
    text = f"""force_backward: true
        layer {{ name: "x" type: "Input" top: "x" input_param {{ {image} }} }}
        layer {{ name: "s" type: "Input" top: "s" input_param {{ shape {{ dim: 10 }} }} }}
        layer {{ name: "p" type: "SPP" bottom: "x" top: "p" spp_param {{ pyramid_height: 2 }} }}
        layer {{ name: "t" type: "Permute" bottom: "p" top: "t" permute_param {{ order: [1, 0] }} }}
        layer {{ name: "f" type: "Filter" bottom: "t" bottom: "s" top: "f" loss_weight: 1 }}"""
    net = build(text, inspectable=True)
    net.write("x", np.random.default_rng(1).standard_normal((1, 2, 4, 4)))
    net.write("s", [1, 0, 1, 1, 0, 1, 1, 1, 0, 1])
    gradients = []
    for _ in range(2):  # the first pass finds that 7 rows are left, and goes on with new shapes
        net.forward()
        net.backward()
        gradients.append(net.backend.read(net.blobs["x"].diff))
    assert gradients[1].sum() == 7
    np.testing.assert_array_equal(*gradients)
