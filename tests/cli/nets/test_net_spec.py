"""`osucaffe net_spec`: Python to prototxt."""

from __future__ import annotations

from osucaffe.proto import NetParameter, parse_text

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


def test_bad_input(cli):
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
        (["missing.py"], "no such file"),
    ]:
        done = cli("net_spec", *arguments)
        assert message in done.err
        assert len(done.err.splitlines()) == 1
