"""Another package brings a layer type with its own primitive, a compression and a channel."""

from __future__ import annotations

from pathlib import Path

import pytest

from osucaffe import plugins
from osucaffe.errors import UserError
from tests.processes import python

FILES = {
    "lab-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: lab\nVersion: 1.0\n",
    "lab-1.0.dist-info/entry_points.txt": """\
[osucaffe.layers]
Tripled = lab.layers:Tripled
Forgotten = lab.layers:Forgotten

[osucaffe.compression]
nothing = lab.network:Nothing

[osucaffe.channels]
pigeons = lab.network:make
""",
    "lab/__init__.py": "",
    "lab/primitives.py": """
from osucaffe.backends.primitives.recording import Primitive, Read, Write

class Triple(Primitive):
    x: "Read"
    y: "Write"
""",
    "lab/cpu.py": """
import numpy as np
from osucaffe.backends.cpu.registry import direct

@direct()
def triple(ctx, a):
    np.multiply(a.x.array, 3, out=a.y.array)
""",
    "lab/layers.py": """
from osucaffe.layers.base import Layer, register
from . import primitives

@register("Tripled")
class Tripled(Layer):
    def setup(self, bottom):
        return bottom

    def forward(self, program, bottom, top):
        program.record(primitives.Triple(bottom[0].data, top[0].data))

    def backward(self, program, top, propagate_down, bottom):
        program.record(primitives.Triple(top[0].diff, bottom[0].diff))

class Forgotten(Layer):
    pass
""",
    "lab/network.py": """
from osucaffe.parallel.hook import GradientHook

class Nothing(GradientHook):
    parameter = staticmethod(int)

def make(job, topology, interface, *, busy, direct):
    return "pigeons"
""",
    "net.prototxt": """
layer { name: "d" type: "DummyData" top: "x" top: "t" dummy_data_param { shape { dim: 2 dim: 3 }
    data_filler { type: "constant" value: 1 } data_filler { type: "constant" value: 6 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 3 } }
layer { name: "lab" type: "Tripled" bottom: "y" top: "z" }
layer { name: "loss" type: "EuclideanLoss" bottom: "z" bottom: "t" }
""",
    "solver.prototxt": 'net: "net.prototxt" base_lr: 0.02 lr_policy: "fixed" max_iter: 40 '
    'display: 40 snapshot_prefix: "lab" solver_mode: CPU',
}
SCRIPT = """
from osucaffe.cli import main
from osucaffe.comm.channels.create import make_channel
from osucaffe.errors import UserError
from osucaffe.layer import layer_names, layer_type
from osucaffe.parallel.choose import choose_hook
from osucaffe.parallel.config import ParallelConfig

main(["train", "--solver", "solver.prototxt"])
print("Tripled" in layer_names(), make_channel(None, None, "pigeons"))
print(choose_hook(ParallelConfig(compression="nothing:4")) is not None)
for wrong in (lambda: layer_type("Forgotten"), lambda: choose_hook(
    ParallelConfig(compression="nothing:some"))):
    try:
        wrong()
    except UserError as error:
        print(error)
"""


def test_another_package_is_found(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = python("-c", SCRIPT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    loss = float(done.stderr.rpartition("loss = ")[2].split()[0])
    assert loss < 1e-3
    assert "True pigeons\nTrue\n" in done.stdout
    assert "layer type Forgotten lacks @register('Forgotten')" in done.stdout
    assert "--compression nothing:some: choose" in done.stdout


def test_what_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "others", lambda group: {"Lost": "nowhere_to_be_found:Lost"})
    with pytest.raises(UserError, match=r"Lost = nowhere_to_be_found:Lost, an entry point of"):
        plugins.find(plugins.LAYERS, "Lost")
