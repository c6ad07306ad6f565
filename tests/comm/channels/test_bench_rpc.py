"""`osucaffe bench rpc`: its payloads are those of TF-gRPC-Bench, and each way calls and answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from osucaffe.comm.channels import payloads
from osucaffe.comm.channels.rpc_report import ratio
from tests.comm.hosts import hosts
from tests.comm.ranks import ROOT, needs_mpi


def test_payloads() -> None:
    small, medium, large = payloads.SIZES.values()
    assert payloads.sizes("64") == [64]
    assert payloads.sizes("large") == [large] * 10
    assert sorted(payloads.sizes("skew")) == [small] + [medium] * 3 + [large] * 6
    uniform = payloads.sizes("uniform")
    assert [uniform.count(size) for size in (small, medium, large)] == [4, 3, 3]
    for seed in range(20):
        drawn = payloads.sizes("random", seed=seed)
        assert len(drawn) == 10
        assert len(set(drawn)) >= 2
    assert [each.nbytes for each in payloads.make("random")] == payloads.sizes("random")


@pytest.mark.long
@needs_mpi
@pytest.mark.parametrize("places", [[], ["--hosts", "2", "--rate", "1gbit"]], ids=["host", "hosts"])
def test_each_way_is_measured_and_the_results_are_written(
    places: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("grpc")
    with hosts(2, "1gbit", tmp_path) as made:
        if places and made is None:
            pytest.skip("network namespaces are not permitted here")
    command = ["bench", "rpc", "--seconds", "0.001", "--workers", "2", "--servers", "1", *places]
    done = subprocess.run(
        [sys.executable, "-m", "osucaffe", *command, "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (written,) = tmp_path.glob("rpc-*.json")
    found = json.loads(written.read_text())
    kinds = {row["benchmark"] for row in found["rows"]}
    assert kinds == {"latency", "bandwidth", "throughput"}
    for row in found["rows"]:
        assert ratio(row) > 0
        assert all(row[way]["rpc_per_s"] > 0 for way in ("mpi", "adaptive", "grpc"))
    assert written.with_suffix(".md").read_text().strip() == done.stdout.strip()
