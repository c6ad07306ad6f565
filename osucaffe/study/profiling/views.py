"""`train --comm_profile FILE`: the option, and the table, JSON, picture and Chrome trace made
of what all ranks recorded."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...api import tables
from ...api.curves import COLOURS
from ...cli.options import Device
from ...cli.plots import draw_next_to, pyplot, save
from ...cli.train.options import Train
from ...comm.job.job import Job
from ...comm.job.topology import Topology
from ...errors import UserError
from ...files import write_bytes
from ..servers.training import Roles
from .passes import Profiled, Records, format_size, lanes, operations_in, summarize, waits_of
from .served import ProfiledServed

logger = logging.getLogger("osucaffe")

_TRACED = 3
"""Iterations that the Chrome trace shows: the last ones."""


def prepare(options: Train, device: Device, job: Job) -> Device:
    """Where this rank runs, adapted for a profiled run. UserError if there is nothing to
    profile, or the file cannot be written."""
    assert options.comm_profile
    if job.size == 1:
        raise UserError("--comm_profile: one rank sends nothing: give --ranks, too")
    if options.servers.servers and device.gpu is not None:
        raise UserError(
            "--comm_profile does not time the streams on which a GPU's gradients go to servers: "
            "leave out --gpu, or --servers"
        )
    if job.rank == 0:
        write_bytes(options.comm_profile, b"{}")
    if device.gpu is not None and not device.no_graph:
        logger.warning(
            "--comm_profile: iterations run without CUDA graphs, which cannot be timed in parts"
        )
        return replace(device, no_graph=True)
    return device


def make_process_group(
    options: Train, job: Job, topology: Topology, roles: Roles | None
) -> Profiled:
    """The process group of a profiled run; roles: with servers."""
    config, comm = options.parallel, options.comm
    report = partial(write, options.comm_profile or "")
    if roles is None:
        return Profiled(report, job, topology, comm, config)
    return ProfiledServed(report, options.servers.channel, roles, topology, comm, config)


def write(path: str, records: Sequence[Records]) -> None:
    """The table to the log, and the files."""
    summary = summarize(records)
    if not summary["iterations"]:
        logger.warning("--comm_profile: no iteration was made, so there is no profile")
        return
    for line in table(summary):
        logger.info("%s", line)
    write_bytes(path, json.dumps(summary, indent=1).encode())
    trace = Path(path).with_suffix(".trace.json")
    events = {"displayTimeUnit": "ms", "traceEvents": list(_events(records))}
    write_bytes(trace, json.dumps(events, indent=0).encode())
    logger.info("wrote %s and %s", path, trace)
    logger.info("%s", draw_next_to(path, lambda picture: draw(summary, records[0], picture)))


def table(summary: dict[str, Any]) -> Iterator[str]:
    """The lines of the table."""
    wall = summary["wall_ms"]
    yield (
        f"Communication of {summary['iterations']} iterations on {summary['ranks']} ranks; all "
        f"times are of an iteration, the ranks' mean: {wall:.3f} ms"
    )
    yield (
        f"The median is {summary['median_ms']:.3f} ms; a tenth of them take less than "
        f"{summary['low_ms']:.3f}, a tenth more than {summary['high_ms']:.3f}"
    )
    yield ", ".join(
        f"{name} {ms:.3f} ms ({ms / wall:.1%})" for name, ms in summary["parts_ms"].items()
    )
    heads = ("operation", "algorithm", "level", "size", "calls", "MB", "ms", "hidden", "exposed")
    yield from tables.table(
        "<<<<" + 6 * ">",
        (*heads, "slowest"),
        *(
            (
                *(row[name] for name in heads[:4]),
                f"{row['calls']:.1f}",
                f"{row['bytes'] / 1e6:.3f}",
                *(f"{row[name]:.3f}" for name in ("ms", "hidden_ms", "exposed_ms", "slowest_ms")),
            )
            for row in summary["operations"]
        ),
    )
    moments = ("ready", "sent", "arrived", "needed", "waited")
    yield from tables.table(
        "<" + 6 * ">",
        ("gradient of", "MB", *moments),
        *(
            (
                row["name"],
                f"{row['bytes'] / 1e6:.3f}",
                *(f"{row[f'{moment}_ms']:.3f}" for moment in moments),
            )
            for row in summary["layers"]
        ),
    )


def _events(records: Sequence[Records]) -> Iterator[dict[str, Any]]:
    """The last iterations of all ranks as a Chrome trace, on rank 0's clock."""
    tracks = ("passes", "waiting", "communication")
    start = records[0].passes[-_TRACED:][0].begin
    for rank in records:
        named = f"osucaffe, rank {rank.rank}, {rank.host}"
        for kind, number, name in (
            ("process_name", 0, named), *(("thread_name", *track) for track in enumerate(tracks)),
        ):  # fmt: skip
            tags = {"pid": rank.rank, "tid": number, "options": {"name": name}}
            yield {"name": kind, "ph": "M", **tags}

        def event(
            name: str, track: int, begin: float, end: float, rank: Records = rank, **more: Any
        ) -> dict[str, Any]:
            at = (begin - rank.offset - start) * 1e6
            return {
                "name": name, "cat": tracks[min(track, 2)], "ph": "X", "ts": at,
                "dur": (end - begin) * 1e6, "pid": rank.rank, "tid": track, "options": more,
            }  # fmt: skip

        for one in rank.passes[-_TRACED:]:
            for name, begin, end in one.spans():
                yield event(name, 0, begin, end)
            posted = operations_in(rank, one)
            for operation in posted:
                for wait in operation.waits:
                    yield event(f"{operation.name} {operation.nbytes:,} B", 1, *wait)
            for lane, m in lanes(m for operation in posted for m in operation.messages):
                name = f"{m.operation} {m.nbytes:,} B"
                begun, ended = m.begun, m.ended
                yield event(name, 2 + lane, begun, ended, algorithm=m.algorithm, level=m.level)


def draw(summary: dict[str, Any], rank: Records, path: str) -> None:
    """summary: from `summarize`. rank: the one whose last iteration is shown."""
    rows = len(summary["operations"])
    figure, (bars, line) = pyplot().subplots(
        *(2, 1), figsize=(10, 4.5 + 0.5 * rows), height_ratios=(1 + 0.5 * rows, 3),
        layout="constrained",
    )  # fmt: skip
    draw_sizes(bars, summary)
    _draw_timeline(line, rank)
    save(figure, path)


def draw_sizes(axes: Any, summary: dict[str, Any]) -> None:
    """A bar for each operation and size: hidden and exposed, and the slowest rank's share."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 3)
    for row in summary["operations"]:
        total = sums[f"{row['operation']}, {row['size']}\n{row['algorithm']}, {row['level']}"]
        for index, name in enumerate(("hidden_ms", "exposed_ms", "slowest_ms")):
            total[index] += row[name]
    labels = list(sums)
    hidden, exposed, slowest = zip(*sums.values(), strict=True) if sums else ((), (), ())
    rows = range(len(labels))
    above, below = ([row + side for row in rows] for side in (-0.2, 0.2))
    axes.barh(above, hidden, 0.38, label="hidden by computation", color=COLOURS[2])
    axes.barh(above, exposed, 0.38, left=hidden, label="exposed", color=COLOURS[1])
    axes.barh(below, slowest, 0.38, label="of it until the slowest rank came", color=COLOURS[4])
    axes.set_yticks(rows, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("ms per iteration")
    axes.set_title(f"{summary['ranks']} ranks, {summary['wall_ms']:.2f} ms per iteration")
    axes.legend(fontsize=8)


def _draw_timeline(axes: Any, rank: Records) -> None:
    """The last iteration of a rank: its passes but for waits, and what travelled then, of which
    what the rank only waited for is exposed."""
    last = next(one for one in reversed(rank.passes) if one.update)

    def bar(
        track: int, begin: float, end: float, colour: str, label: str = "", ink: str = "black"
    ) -> None:
        begin, end = max(begin, last.begin), min(end, last.end)
        start, width = (begin - last.begin) * 1e3, (end - begin) * 1e3
        axes.broken_barh([(start, width)], (track - 0.4, 0.8), color=colour, edgecolor="white")
        if label and end - begin > 0.09 * (last.end - last.begin):
            middle = start + width / 2
            axes.text(middle, track, label, ha="center", va="center", fontsize=8, color=ink)

    colours = (COLOURS[3], COLOURS[5], COLOURS[0], COLOURS[4])
    for (name, begin, end), colour in zip(last.spans(), colours, strict=True):
        bar(1, begin, end, colour, name, "white" if name == "backward" else "black")
    waits = [span for span in waits_of(rank) if span[1] > last.begin and span[0] < last.end]
    for wait in waits:
        bar(1, *wait, "white")  # a pass that waits does nothing
    messages = (m for operation in rank.operations for m in operation.messages)
    least = 0
    for lane, message in lanes(m for m in messages if m.ended > last.begin and m.begun < last.end):
        label = f"{message.operation}\n{format_size(message.nbytes)}"
        least = min(least, -lane)
        bar(-lane, message.begun, message.ended, COLOURS[2])
        for begin, end in waits:
            if begin < message.ended and message.begun < end:
                bar(-lane, max(begin, message.begun), min(end, message.ended), COLOURS[1])
        bar(-lane, message.begun, message.ended, "none", label, "white")
    axes.set_ylim(least - 0.6, 1.6)
    axes.set_yticks((0, 1), ["travelling,\nhidden or exposed", "passes"])
    axes.set_xlabel(f"ms of the last iteration of rank {rank.rank}")
