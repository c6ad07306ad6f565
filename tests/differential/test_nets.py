"""Random nets are computed rightly: some beside what PyTorch made of them once, others that change
daily beside PyTorch, where it is here, or else in one configuration beside another."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from .search import today

CASES = sorted((Path(__file__).parent / "cases").iterdir())
NETS = 150


def differential(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.differential", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=1800,  # which only a hang takes
    )


def check_nets(root: Path, *arguments: str) -> None:
    """None of so many nets fails."""
    done = differential(root, f"--nets={NETS}", "--workers=1", "--quick", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{NETS} nets of seed" in done.stdout


def test_nets_whose_values_are_stored(root: Path) -> None:
    check_nets(root, "--stored")


def test_nets_of_today(root: Path) -> None:
    check_nets(root, f"--seed={today()}")


def test_what_once_failed(root: Path) -> None:
    done = differential(root, "--file", *map(str, CASES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs PyTorch: without passes it is as wrong"
)
def test_a_wrong_gradient_is_found(root: Path, tmp_path: Path) -> None:
    """A net that overwrites what gradients need, as Caffe does, is told of and made smaller."""
    path = tmp_path / "wrong.prototxt"
    path.write_text(
        """
        layer { name: "real_1" type: "Input" top: "real_1" input_param { shape { dim: 2 dim: 5 } } }
        layer { name: "tanh" type: "TanH" bottom: "real_1" top: "tanh" }
        layer { name: "ip" type: "InnerProduct" bottom: "tanh" top: "ip"
                inner_product_param { num_output: 3 } }
        layer { name: "sigmoid" type: "Sigmoid" bottom: "ip" top: "ip" }
        layer { name: "scale" type: "Scale" bottom: "ip" top: "ip" }
        layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1
                reduction_param { operation: SUMSQ } }
        """
    )
    done = differential(root, "--file", str(path), "--minimize")
    assert done.returncode == 1
    assert "gradient/ip.0" in done.stdout
    assert "TanH" not in done.stdout
