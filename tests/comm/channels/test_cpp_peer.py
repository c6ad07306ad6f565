"""The peer of `osucaffe bench rpc` in C++: what it tells becomes rows and a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from osucaffe.comm.channels.cpp_peer import measure
from osucaffe.comm.channels.rpc_report import _peer_table
from osucaffe.errors import UserError

ROWS = [
    {
        "benchmark": benchmark,
        "payload": "small",
        "grpc": {"median_s": 0.05, "rpc_per_s": 4.0},
        "adaptive": {"median_s": 0.0125, "rpc_per_s": 96.0, "processor_s": 0.025},
    }
    for benchmark in ("latency", "bandwidth", "throughput")
]


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
