"""Training on several GPUs is training on one with the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.comm.gpu.test_gpu import gpus
from tests.comm.ranks import all_say, needs_mpi

from .test_cli import folder, train  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.gpu, needs_mpi]


def test_equivalence(tmp_path: Path) -> None:
    all_say("cases alike", gpus(), "tests.parallel.gpu_training", str(tmp_path), timeout=300)


def test_two_ranks_on_a_gpu(tmp_path: Path) -> None:
    ranks = 2 * min(2, gpus())
    all_say("cases alike", ranks, "tests.parallel.gpu_training", str(tmp_path), timeout=300)


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 1), (2, 2)])
def test_servers_beside_workers_on_a_gpu(workers: int, servers: int, tmp_path: Path) -> None:
    ranks = workers + servers
    all_say("served", ranks, "tests.study.servers.gpu_serving", str(tmp_path), str(servers))


def test_the_command_line_starts_servers_beside_gpus(folder: Path) -> None:  # noqa: F811
    done = train(
        folder, "--gpu", "0", "--servers", "1", "--channel", "adaptive", "--precision", "bf16"
    )
    assert done.returncode == 0, done.stderr
    assert "1 servers hold" in done.stderr
    assert "Optimization Done." in done.stderr


def test_records_that_are_divided(tmp_path: Path) -> None:
    all_say("spread records alike", 2, "tests.parallel.gpu_spread")


def test_the_command_line_starts_a_rank_on_each_gpu(folder: Path) -> None:  # noqa: F811
    if gpus() < 2:
        pytest.skip("there is one GPU only")
    done = train(folder, "--gpu", "all", "--propagation", "sharded", "--trace", "out.json")
    assert done.returncode == 0, done.stderr
    assert f"12 records on each of {gpus()} ranks" in done.stderr
    assert "Optimization Done." in done.stderr
    assert "communication" in (folder / "out.json").read_text()
