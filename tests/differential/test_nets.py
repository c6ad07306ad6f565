"""Random nets are computed rightly: some beside what PyTorch made of them once, others that change
daily beside PyTorch, where it is here, or else in one configuration beside another."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import pytest

from tests.backends.cuda.emulated import needs_compilers
from tests.comm.ranks import mpiexec, needs_mpi
from tests.processes import python

from .search import today

CASES = sorted((Path(__file__).parent / "cases").iterdir())
ON_GPUS = [each for each in CASES if "On a GPU" in each.read_text()]
SOME = pytest.mark.parametrize("share", [0.3, pytest.param(1, marks=pytest.mark.long)])
NETS = 150
"""Whose values are stored."""
DAILY = 50

differential = functools.partial(python, "-m", "tests.differential", timeout=1800)


def check_nets(count: int, *arguments: str) -> None:
    """None of so many nets fails."""
    done = differential(f"--nets={count}", "--workers=1", "--quick", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} nets of seed" in done.stdout


@SOME
def test_nets_whose_values_are_stored(share: float) -> None:
    check_nets(int(share * NETS), "--stored")


@SOME
def test_nets_of_today(share: float) -> None:
    check_nets(int(share * DAILY), f"--seed={today()}")


def test_what_once_failed() -> None:
    done = differential("--file", *map(str, CASES))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_compilers
@pytest.mark.parametrize("count", [1, pytest.param(60, marks=pytest.mark.long)])
def test_nets_on_an_emulated_gpu(count: int) -> None:
    """The GPU's own kernels and passes, without a GPU."""
    done = differential("--emulated", "--file", *map(str, ON_GPUS))
    assert done.returncode == 0, done.stdout + done.stderr
    check_nets(count, "--emulated", "--wide", f"--seed={today()}")


@needs_mpi
def test_two_ranks_with_one_batch_train_as_one_rank_does() -> None:
    done = mpiexec(2, "-m", "tests.differential.ranks", "2", "0", "16")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs PyTorch: without passes it is as wrong"
)
def test_a_wrong_gradient_is_found(tmp_path: Path) -> None:
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
    done = differential("--file", str(path), "--minimize")
    assert done.returncode == 1
    assert "gradient/ip.0" in done.stdout
    assert "TanH" not in done.stdout
