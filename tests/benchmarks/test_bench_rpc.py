"""`benchmarks.rpc`: its payloads are those of TF-gRPC-Bench, and each way calls and answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.hosts import hosts
from benchmarks.rpc import rpc_payloads as payloads
from benchmarks.rpc.bench_rpc import main
from benchmarks.rpc.rpc_cpp_peer import measure
from benchmarks.rpc.rpc_report import _peer_table, ratio
from osucaffe.errors import UserError
from tests.comm.ranks import needs_mpi
from tests.processes import python

ROWS = [
    {
        "benchmark": benchmark,
        "payload": "small",
        "grpc": {"median_s": 0.05, "rpc_per_s": 4.0},
        "adaptive": {"median_s": 0.0125, "rpc_per_s": 96.0, "processor_s": 0.025},
    }
    for benchmark in ("latency", "bandwidth", "throughput")
]


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
    command = ["--seconds", "0.001", "--workers", "2", "--servers", "1", *places]
    done = python("-m", "benchmarks.rpc.bench_rpc", *command, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (written,) = tmp_path.glob("rpc-*.json")
    found = json.loads(written.read_text())
    kinds = {row["benchmark"] for row in found["rows"]}
    assert kinds == {"latency", "bandwidth", "throughput"}
    for row in found["rows"]:
        assert ratio(row) > 0
        assert all(row[way]["rpc_per_s"] > 0 for way in ("mpi", "adaptive", "grpc"))
    assert written.with_suffix(".md").read_text().strip() == done.stdout.strip()


@needs_mpi
def test_some_of_it_can_be_chosen_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    picture = tmp_path / "rpc.png"
    some = ["--benchmarks", "latency", "--payloads", "64,small", "--channels", "sockets"]
    command = ["-m", "benchmarks.rpc.bench_rpc", "--seconds", "0.001", *some, "--plot"]
    done = python(*command, str(picture))
    assert done.returncode == 0, done.stderr
    assert "| payload | bytes | sockets | grpc | sockets / grpc | published |" in done.stdout
    assert "throughput |" not in done.stdout
    assert "GOAWAY" not in done.stderr
    assert picture.stat().st_size > 10_000
    for option in ("--benchmarks", "--payloads", "--channels"):
        with pytest.raises(SystemExit, match=f"{option} other: choose among"):
            main([option, "other"])


def test_what_the_peer_tells(tmp_path: Path) -> None:
    peer = tmp_path / "peer"
    serve = "echo $2:7; cat > /dev/null; echo 4.4"  # seconds, of 4 x 11 calls
    peer.write_text(f"#!/bin/sh\nif [ $1 = serve ]; then {serve}; else echo 0.025 8 0.1; fi\n")
    peer.chmod(0o755)
    bandwidth, throughput = measure(str(peer), ROWS, 4, 2)
    assert bandwidth["median_s"] == 0.025
    assert throughput["rpc_per_s"] == 32
    assert throughput["processor_s"] == pytest.approx(0.2)
    table = _peer_table(ROWS, [bandwidth, throughput])
    assert "| bandwidth | small | 25,000 | 8 |" in table
    assert "| 200,000 | 8.00 | 3.00 | 8.00 |" in table


def test_a_peer_that_is_not_there_is_told() -> None:
    with pytest.raises(UserError, match=r"--peer build/nix: No such file .*make grpc-peer"):
        measure("build/nix", ROWS, 1, 1)
