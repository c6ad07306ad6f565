"""The measurement of plain gRPC in C++ (benchmarks/grpc_peer): what of a gain is Python's."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from osucaffe.errors import UserError

from ..hosts import Hosts
from . import rpc_payloads as payloads

_FEWEST = 10  # calls
_LIMIT = 300  # seconds


def measure(
    peer: str,
    rows: Sequence[dict[str, Any]],
    workers: int,
    servers: int,
    made: Hosts | None = None,
) -> list[dict[str, Any]]:
    """For each row of bandwidth and throughput, the same calls by this program: median seconds of a
    call, calls/s, processor seconds of a call. made: callers run on the first of these hosts,
    servers on the second (None: all on this host). UserError."""
    found = []
    call, serve = [peer, "call"], [peer, "serve", "127.0.0.1"]
    if made is not None:
        call = [*made.inside(0), *call]
        serve = [*made.inside(1), peer, "serve", made.address(1)]
    for row in rows:
        if row["benchmark"] in ("bandwidth", "throughput"):
            counts = (1, 1) if row["benchmark"] == "bandwidth" else (workers, servers)
            calls = max(_FEWEST, int(0.5 / row["grpc"]["median_s"]))
            result = _calls(call, serve, row["payload"], *counts, calls)
            found.append({key: row[key] for key in ("benchmark", "payload")} | result)
    return found


def _calls(
    call: list[str], serve: list[str], payload: str, workers: int, servers: int, calls: int
) -> dict[str, float]:
    sizes = ",".join(map(str, payloads.sizes(payload)))
    with ExitStack() as stack:
        serving = [stack.enter_context(_start(serve)) for _ in range(servers)]
        places = [_read(each) for each in serving]
        calling = [
            stack.enter_context(_start([*call, str(calls), sizes, *places])) for _ in range(workers)
        ]
        told = [[float(word) for word in _read(each).split()] for each in calling]
        # The servers' own work counts the calls that warm up, too.
        answered = workers * (calls + max(1, calls // 10))
        served = [float(each.communicate(timeout=_LIMIT)[0]) / answered for each in serving]
    return {
        "median_s": sorted(each[0] for each in told)[len(told) // 2],
        "rpc_per_s": sum(each[1] for each in told),
        "processor_s": sum(each[2] for each in told) / workers + sum(served) / servers,
    }


def _start(command: list[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise UserError(f"--peer {command[0]}: {error.strerror} (make grpc-peer)") from error


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise UserError("--peer: it ended without a result")
    return line
