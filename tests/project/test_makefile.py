"""Tests of what make would do: only printed (make -n), with and without an NVIDIA driver."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="make is not there")


def planned(folder: Path, *words: str, cuda: str = "") -> str:
    """The commands of `make WORDS` where nvidia-smi tells of this CUDA ("": there is none)."""
    smi = folder / "nvidia-smi"
    told = f"| NVIDIA-SMI 580.65   Driver Version: 580.65   CUDA Version: {cuda}  |"
    smi.write_text(f"#!/bin/sh\necho '{told}'\n" if cuda else "#!/bin/sh\nexit 9\n")
    smi.chmod(0o755)
    variables = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    variables = {
        name: value
        for name, value in variables.items()
        if name not in ("GPU", "CUDA", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    command = ["make", "-n", f"VENV={folder}/env", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("cuda", "extra"), [("12.4", "cuda12"), ("13.0", "cuda13"), ("14.1", "cuda13")]
)
def test_training_on_a_gpu_takes_the_drivers_extra(tmp_path: Path, cuda: str, extra: str) -> None:
    told = planned(tmp_path, "train", "GPU=1", cuda=cuda)
    assert f"'.[{extra}]'" in told
    assert told.rstrip().endswith("--gpu 0")


def test_without_a_gpu_nothing_is_said_of_it(tmp_path: Path) -> None:
    told = planned(tmp_path, "train")
    assert "GPU" not in told
    assert "--gpu" not in told
    assert "there is no NVIDIA driver" in planned(tmp_path, "train", "GPU=1")


def test_a_gpu_that_is_not_used_is_told(tmp_path: Path) -> None:
    told = planned(tmp_path, "train", cuda="13.0")
    assert "--gpu" not in told
    assert "There is an NVIDIA GPU: make train GPU=1" in told


def test_clean_removes_the_snapshots_of_train(tmp_path: Path) -> None:
    solver = (ROOT / "models" / "lenet" / "solver.prototxt").read_text()
    assert 'snapshot_prefix: "models/lenet/lenet"' in solver
    told = planned(tmp_path, "clean")
    assert "models/lenet/lenet_iter_*.caffemodel models/lenet/lenet_iter_*.solverstate" in told
