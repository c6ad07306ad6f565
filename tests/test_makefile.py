"""`make train` says that there is a GPU, and GPU=1 trains there: what make would run is read."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(folder: Path, *words: str, driver: str = "") -> str:
    """What make would run, on a machine with this driver of NVIDIA's ("": none)."""
    if driver:
        program = folder / "nvidia-smi"
        program.write_text(
            f'#!/bin/sh\nif [ "$1" = -L ]; then echo "GPU 0: H200"; else echo {driver}; fi\n'
        )
        program.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    # In a folder of its own nothing is set up yet.
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    done = subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=folder,
        env={**os.environ, "PATH": path, "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(("driver", "cuda"), [("580.65.06", "cuda13"), ("550.90.07", "cuda12")])
def test_a_gpu_is_used(tmp_path: Path, driver: str, cuda: str) -> None:
    would = make(tmp_path, "-n", "train", "GPU=1", driver=driver)
    assert f"--editable '.[{cuda}]'" in would
    assert "--max_iter 3000 --gpu 0" in would
    assert "--editable '.[cuda12]'" in make(tmp_path, "-n", "train", "GPU=1", "CUDA=cuda12")


def test_a_gpu_is_told(tmp_path: Path) -> None:
    words = ["-o", "data/mnist/mnist_train_lmdb/data.mdb", "-o", ".venv/run.stamp", "BIN=echo"]
    for file in words[1:4:2]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    program = tmp_path / "osucaffe"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    words[-1] = f"BIN={tmp_path}"
    told = "This machine has an NVIDIA GPU: make train GPU=1 trains on it."
    assert told in make(tmp_path, "train", *words, driver="580.65.06")
    (tmp_path / "nvidia-smi").unlink()
    if shutil.which("nvidia-smi") is None:
        assert told not in make(tmp_path, "train", *words)
