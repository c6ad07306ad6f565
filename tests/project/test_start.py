"""What a start imports, and that training does without the other parts of the package."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.processes import python

from .test_architecture import PACKAGE, PARTS, ROOT

MAX_MODULES = {"import": 1, "train": 240}
"""Modules of osucaffe: of `import osucaffe`, and of LeNet's training. To be lowered as it gets
less."""
COUNT = """
import sys
def count(what):
    print(what, *sorted(name for name in sys.modules if f"{name}.".startswith("osucaffe.")))
"""
TRAIN = """
from osucaffe.cli import main
from osucaffe.layer import layer_names
main(["train", "--solver", "solver.prototxt"])
count("train")
print("types", *layer_names())
"""
SOLVER = """net: "net.prototxt" max_iter: 2 base_lr: 0.01 lr_policy: "fixed" snapshot: 1 display: 1
snapshot_prefix: "lenet" solver_mode: CPU"""
DATA = """name: "d" type: "DummyData" top: "data" top: "label"
dummy_data_param { shape { dim: 8 dim: 1 dim: 28 dim: 28 } shape { dim: 8 } } }"""


def test_lenet_trains_without_the_other_parts_and_imports_little(tmp_path: Path) -> None:
    left_out = shutil.ignore_patterns(*PARTS, "__pycache__", "models")
    shutil.copytree(PACKAGE, tmp_path / "osucaffe", ignore=left_out)
    _, _, _, *layers = (ROOT / "models/lenet/train_val.prototxt").read_text().split("layer {")
    (tmp_path / "net.prototxt").write_text("layer {".join(["", DATA, *layers]))
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    script = f"{COUNT}import osucaffe\ncount('import')\n{TRAIN}"
    done = python("-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {words[0]: words[1:] for line in done.stdout.splitlines() if (words := line.split())}
    counts = {name: len(found[name]) for name in MAX_MODULES}
    assert {name: max(counts[name], most) for name, most in MAX_MODULES.items()} == MAX_MODULES
    assert not [name for name in found["train"] if name.startswith("osucaffe.backends.cuda")]
    assert "Convolution" in found["types"]
    assert "MultiBoxLoss" not in found["types"]
    assert (tmp_path / "lenet_iter_2.caffemodel").exists()
