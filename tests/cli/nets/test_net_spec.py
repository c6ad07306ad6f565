"""`osucaffe net_spec`: Python to prototxt and back, for all model files."""

from __future__ import annotations

import pytest

import osucaffe.pycaffe as caffe
from osucaffe.cli.nets.net_spec import to_python
from osucaffe.errors import UserError
from osucaffe.graph.prototxt.filter import filter_layers, net_state
from osucaffe.proto import NetParameter, parse_text, read_net

SCRIPT = """
import caffe
from caffe import layers as L

def small(units=3):
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[2, 4]))
    n.ip = L.InnerProduct(n.data, num_output=units)
    n.out = L.ReLU(n.ip, in_place=True)
    return n

net = small(5)
"""


def test_python_gives_a_prototxt(cli):
    cli.write("net.py", SCRIPT)
    done = cli("net_spec", "net.py")
    net = parse_text(done.out, NetParameter)
    assert [layer.type for layer in net.layer] == ["Input", "InnerProduct", "ReLU"]
    assert net.layer[1].inner_product_param.num_output == 5
    net = parse_text(cli("net_spec", "net.py", "--object", "small").out, NetParameter)
    assert net.layer[1].inner_product_param.num_output == 3


def test_there_and_back(cli):
    cli.write("net.py", SCRIPT)
    text = cli("net_spec", "net.py").out
    cli.write("net.prototxt", text)
    cli.write("again.py", cli("net_spec", "net.prototxt").out)
    assert text in cli("net_spec", "again.py").out


def test_layers_that_share_a_name_or_have_none(monkeypatch):
    import sys

    text = """
    layer { name: "r" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { type: "ReLU" bottom: "x" top: "x" }
    layer { type: "ReLU" bottom: "x" top: "x" }
    layer { name: "r" type: "TanH" bottom: "x" top: "relu" }
    layer { name: "r" type: "Silence" bottom: "relu" }
    """
    net = parse_text(text, NetParameter)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    caffe.install()
    scope: dict[str, object] = {}
    exec(to_python(net).replace("print(net)", ""), scope)
    assert str(scope["net"]).replace('  name: ""\n', "") == str(net)


def models(root):
    return [path for path in sorted(root.glob("models/*/*.prototxt")) if "solver" not in path.name]


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_every_model_comes_back(root, phase, monkeypatch):
    import sys

    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    caffe.install()
    for path in models(root):
        whole = read_net(path)
        rules = [rule for layer in whole.layer for rule in layer.include]
        for stage in {stage for rule in rules for stage in rule.stage} or {None}:
            net = filter_layers(whole, net_state(whole, phase, stages=[stage] if stage else []))
            net.ClearField("state")
            made = {}
            exec(to_python(net).replace("print(net)", ""), made)
            assert made["net"] == net, path


def test_names_that_python_does_not_know():
    net = parse_text(
        'layer { name: "in" type: "Input" top: "a/b" input_param { shape { dim: 1 } } } '
        'layer { name: "a/b" type: "Power" bottom: "a/b" top: "a/b" } '
        'layer { name: "quiet" type: "Silence" bottom: "a/b" }',
        NetParameter,
    )
    text = to_python(net)
    assert "n['a/b'] = L.Input(name='in', shape=[dict(dim=[1])])" in text
    assert "n['a/b_'] = L.Power(n['a/b'], name='a/b', in_place=True)" in text
    assert "n.quiet = L.Silence(n['a/b_'], ntop=0)" in text


def test_bad_input(cli, root):
    cli.write("two.py", SCRIPT + "\nother = small(2)\n")
    cli.write("none.py", "net = 3\n")
    cli.write("broken.py", "def net():\n    return 1 / 0\n")
    cli.write("open.py", "net = (\n")
    for arguments, message in [
        (["two.py"], "makes 2 nets: net, other; name one with --object"),
        (["none.py"], "none.py: makes no net; name a function that does with --object"),
        (["broken.py", "--object", "net"], "broken.py, line 2: ZeroDivisionError: division by"),
        (["open.py"], "open.py, line 1: SyntaxError: '(' was never closed"),
        (["none.py", "--object", "net"], "gives int, not a net"),
        (["none.py", "--object", "lenet"], "makes nothing named lenet"),
        (["missing.py"], "there is no such file"),
    ]:
        done = cli("net_spec", *arguments)
        assert message in done.err
        assert len(done.err.splitlines()) == 1
    net = read_net(root / "models" / "lenet" / "train_val.prototxt")
    with pytest.raises(UserError, match="--phase TRAIN"):
        to_python(net)
