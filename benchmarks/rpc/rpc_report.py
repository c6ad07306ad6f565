"""The report of `benchmarks.rpc.bench_rpc`: tables of its rows, and the files that keep them."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from osucaffe.api.curves import COLOURS
from osucaffe.cli import plots

from .. import results

TARGETS = {("latency", "2097152"): 4, ("bandwidth", "skew"): 4, ("throughput", "small"): 8}
"""How many times better than plain gRPC the adaptive channel is meant to be over sockets."""
ON_HOST = 10
"""And between processes of one host."""
PUBLISHED = {
    ("latency", "small"): 2.7, ("latency", "medium"): 2.8, ("latency", "large"): 2.5,
    ("bandwidth", "skew"): 2.14, ("throughput", "uniform"): 3.4,
}  # fmt: skip
"""Of AR-gRPC over gRPC, on InfiniBand, both in C++ (arXiv 1804.01138 and what followed)."""


def write(
    rows: Sequence[dict[str, Any]],
    workers: int,
    servers: int,
    out: str | None,
    rate: str | None = None,
    peer: Sequence[dict[str, Any]] = (),
) -> str:
    """Return the tables; write them, and the rows, into this folder if there is one. rate: of the
    link between two hosts (None: all ranks are on one). peer: rows of `cpp_peer`."""
    import grpc  # an extra

    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **results.machine(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "grpcio": grpc.__version__,
        "workers": workers,
        "servers": servers,
        "rate": rate,
    }
    text = _text(about, rows) + _peer_table(rows, peer)
    if out is not None:
        record = {"about": about, "rows": list(rows), "cpp": list(peer)}
        results.write(f"rpc-{rate or 'cpu'}-{results.today()}", record, f"{text}\n", Path(out))
    return text


def _text(about: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    where = "between processes of one host"
    if about["rate"]:
        where = f"between two hosts (network namespaces) over a link of {about['rate']}"
    lines = [
        "# Calls by each channel, beside plain gRPC",
        "",
        f"`python -m benchmarks.rpc.bench_rpc`, {about['date']}: {about['cpu']}, "
        f"{about['cores']} cores, Python {about['python']}, grpcio {about['grpcio']}, {where}. "
        f"Medians; the channels took turns. Load average at the end: {about['load']}.",
        "",
        "- latency: a payload is echoed, microseconds there and back (99th percentile). bandwidth: "
        "a payload is answered by a byte, MB/s. throughput: "
        f"{about['workers']} workers call {about['servers']} servers at once, calls/s of all.",
        "- adaptive: on one host, large payloads from memory to memory; sockets: the same as "
        "between hosts, over sockets only. ucx: all messages by UCX. / grpc: how many times better "
        "than plain gRPC, and in brackets what is aimed at. published: of AR-gRPC over gRPC, both "
        "in C++, on InfiniBand.",
        "- grpc: grpcio's unary calls with bytes, one copy to join a payload of several buffers. "
        "stream: the same over one stream for each direction, which `--channel grpc` uses.",
    ]
    for benchmark in ("latency", "bandwidth", "throughput"):
        chosen = [row for row in rows if row["benchmark"] == benchmark]
        ways = [name for name in chosen[0] if isinstance(chosen[0][name], dict)] if chosen else []
        if not chosen:
            continue
        compared = [way for way in ("adaptive", "sockets") if way in ways]
        heads = ["payload", "bytes", *ways, *(f"{way} / grpc" for way in compared), "published"]
        cells = []
        for row in chosen:
            key = benchmark, row["payload"]
            aims = {"adaptive": ON_HOST, "sockets": TARGETS[key]} if key in TARGETS else {}
            cells.append(
                [
                    row["payload"],
                    f"{row['bytes']:,}",
                    *(_shown(row, name) for name in ways),
                    *(
                        f"{ratio(row, way):.2f}" + (f" ({aims[way]})" if aims else "")
                        for way in compared
                    ),
                    PUBLISHED.get(key, ""),
                ]
            )
        lines += ["", f"## {benchmark}", "", results.table(heads, cells)]
    lines += _work_table(rows)
    return "\n".join(lines)


def _work_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What a call costs in processor time, whatever else the machine does meanwhile."""
    ways = [name for name in rows[0] if isinstance(rows[0][name], dict)] if rows else []
    ways = [name for name in ways if name != "mpi"]
    compared = [way for way in ("adaptive", "sockets") if way in ways]
    heads = ["benchmark", "payload", *ways, *(f"grpc / {way}" for way in compared)]
    cells = []
    for row in rows:
        spent = {name: row[name]["processor_s"] for name in ways}
        cells.append(
            [
                row["benchmark"],
                row["payload"],
                *(f"{each * 1e6:,.0f}" for each in spent.values()),
                *(f"{spent['grpc'] / spent[way]:.1f}" for way in compared),
            ]
        )
    return [
        "",
        "## Processor time of a call, microseconds",
        "",
        "Of all ranks together, without mpi's, which never sleeps. It is what bounds calls/s once "
        "all cores are busy, and depends little on what else the machine does.",
        "",
        results.table(heads, cells),
    ]


def draw(rows: Sequence[dict[str, Any]], path: str) -> None:
    """How many times better than plain gRPC each way is, by payload: a panel a benchmark."""
    benchmarks = list(dict.fromkeys(row["benchmark"] for row in rows))
    figure, panels = plots.pyplot().subplots(
        1, len(benchmarks), figsize=(5.5 * len(benchmarks), 4), layout="constrained", squeeze=False
    )
    for axes, benchmark in zip(panels[0], benchmarks, strict=True):
        chosen = [row for row in rows if row["benchmark"] == benchmark]
        ways = [name for name in chosen[0] if isinstance(chosen[0][name], dict)]
        ways.remove("grpc")
        for number, way in enumerate(ways):
            at = [index + 0.8 * number / len(ways) for index in range(len(chosen))]
            better = [ratio(row, way) for row in chosen]
            colour = COLOURS[number % len(COLOURS)]
            axes.bar(at, better, 0.8 / len(ways), align="edge", color=colour, label=way)
        axes.set_xticks([n + 0.4 for n in range(len(chosen))], [row["payload"] for row in chosen])
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}x")
        axes.axhline(1, color="gray", linewidth=0.8)
        axes.set_title(f"{benchmark}, times better than grpc")
    panels[0][0].legend()
    plots.save(figure, path)


def _peer_table(rows: Sequence[dict[str, Any]], peer: Sequence[dict[str, Any]]) -> str:
    """How much of the gain is Python's."""
    if not peer:
        return ""
    heads = ["benchmark", "payload", "C++, µs of a call", "C++, calls/s", "C++, processor µs"]
    heads += ["C++ / grpcio", "adaptive / C++", "by processor time"]
    lines = [
        "",
        "",
        "## Plain gRPC in C++",
        "",
        "The same calls by benchmarks/grpc_peer, between the same hosts, right after the "
        "rest: no Python, and no copy to join a payload's buffers. C++ / grpcio, adaptive / C++: "
        "how many times better; by processor time: the latter, of a call's processor time.",
        "",
    ]
    cells = []
    for found in peer:
        key = found["benchmark"], found["payload"]
        (row,) = [row for row in rows if (row["benchmark"], row["payload"]) == key]
        gain = ratio({**row, "adaptive": found})
        cells.append(
            [
                *key,
                f"{found['median_s'] * 1e6:,.0f}",
                f"{found['rpc_per_s']:,.0f}",
                f"{found['processor_s'] * 1e6:,.0f}",
                f"{gain:.2f}",
                f"{ratio(row) / gain:.2f}",
                f"{found['processor_s'] / row['adaptive']['processor_s']:.2f}",
            ]
        )
    return "\n".join([*lines, results.table(heads, cells)])


def ratio(row: dict[str, Any], way: str = "adaptive") -> float:
    """How many times better this way is than plain gRPC."""
    if row["benchmark"] == "throughput":
        return float(row[way]["rpc_per_s"] / row["grpc"]["rpc_per_s"])
    return float(row["grpc"]["median_s"] / row[way]["median_s"])


def _shown(row: dict[str, Any], name: str) -> str:
    found = row[name]
    if row["benchmark"] == "latency":
        return f"{found['median_s'] * 1e6:,.0f} ({found['p99_s'] * 1e6:,.0f})"
    if row["benchmark"] == "bandwidth":
        return f"{row['bytes'] / found['median_s'] / 1e6:,.1f}"
    return f"{found['rpc_per_s']:,.0f}"
