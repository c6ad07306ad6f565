"""`osucaffe study`: all designs by numbers of ranks, predicted for a cluster and measured on
this machine, as one HTML page and a CSV."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from .. import __version__, log
from ..api.curves import Points, panel
from ..backends.cores import usable_cores
from ..cli.reports.report_page import facts, page, table
from ..errors import UserError
from ..files import write_bytes
from ..options.kinds import names
from ..parallel.buckets import ITEM
from ..parallel.config import TUNED
from .iteration import DESIGNS, SERVED, SPLIT, SYNC, Prediction
from .local_runs import LocalRuns, flags
from .options import Study
from .predict import HEADING, Case, comma_separated, curves, fastest, values


def run(args: Study) -> None:
    """Predict, measure, and write the page and its tables."""
    out = Path(args.out)
    if out.suffix != ".html":
        raise UserError(f"--out {out}: give a page to write, such as study.html")
    most = usable_cores() if args.local_ranks is None else args.local_ranks
    if most and args.bucket == TUNED:
        raise UserError("--bucket_mb auto is only predicted: give a number, or --local_ranks 0")
    log.start()
    log.quieten()
    designs = names(args.designs) if args.designs else _designs_for(args)
    case = Case(args, designs)
    predicted = case.predict()
    runs, measured = LocalRuns(case, max(most, 1), args.seconds), list[Prediction]()
    if most:
        print(f"\n{_here(runs, most)}\n{HEADING}")
        measured += runs.measure()
    parts = {"predicted": predicted, "measured": measured}
    write_bytes(out, _page(case, runs, most, parts).encode())
    rows = [{"source": name, **values(one)} for name, part in parts.items() for one in part]
    write_bytes(out.with_suffix(".csv"), comma_separated(rows).encode())
    print(f"wrote {out} and {out.with_suffix('.csv')}")


def _designs_for(args: Study) -> list[str]:
    """All that go with the other options."""
    left_out = () if args.servers else SERVED
    if args.gradient_type != "float32":
        left_out = *left_out, SPLIT
    return [design for design in DESIGNS if design not in left_out]


def _here(runs: LocalRuns, most: int) -> str:
    return (
        f"Measured on {platform.node()}, on {usable_cores()} cores, by up to {most} processes "
        f"(--threads {runs.threads})"
    )


def _page(case: Case, runs: LocalRuns, most: int, parts: Mapping[str, Sequence[Prediction]]) -> str:
    predicted, measured = parts["predicted"], parts["measured"]
    there, here = f"Predicted: {case.cluster.name}", _here(runs, most)
    sections = [
        ("What was asked", _facts(case)),
        ("The best design", _best(predicted, measured)),
        (there, _panels(case, predicted)),
        (here, _panels(case, measured)),
        ("Not measured", facts([("", why) for why in runs.failed])),
        ("Designs", _designs(case)),
        ("Numbers: predicted", _numbers(predicted)),
        ("Numbers: measured", _numbers(measured)),
    ]
    return page(case.title, f"osucaffe {__version__}", sections)


def _facts(case: Case) -> str:
    """The question, and what the answer rests on."""
    args, sketch = case.args, case.sketch(1)
    divided = "of all ranks together" if args.scal == "strong" else "of each rank"
    times = "the cluster's file"
    if args.measure:
        times = f"measured here, {args.measure} times"
    elif args.times:
        times = args.times
    rows = [
        ("net", f"{len(sketch.layers)} layers, {len(sketch.arena) * ITEM:,} bytes of weights"),
        ("batch", f"{sketch.batch} {divided}" if sketch.batch else "not known"),
        ("layers' times", times),
        ("cluster", args.cluster),
        *(("source", f"{name}: {text}") for name, text in case.cluster.sources.items()),
        ("command", shlex.join(["osucaffe", *log.command])),
    ]
    return facts(rows)


def _best(predicted: Sequence[Prediction], measured: Sequence[Prediction]) -> str:
    """For each number of ranks the fastest designs, and their numbers."""

    def lines() -> Iterator[tuple[object, ...]]:
        for ranks in sorted({one.ranks for one in predicted}):
            for source, part in (("predicted", predicted), ("measured here", measured)):
                if same := [one for one in part if one.ranks == ranks]:
                    best, *alike = fastest(same)
                    others = ", ".join(one.design for one in alike)
                    yield ranks, source, best.design, *_cells(best), others

    return table(("ranks", "", "fastest", *_HEADS, "as fast"), lines())


_HEADS = "ms", "images/s", "efficiency", "exposed ms"


def _cells(one: Prediction) -> tuple[str, ...]:
    return f"{one.ms:.3f}", f"{one.images:,.1f}", f"{one.efficiency:.1%}", f"{one.exposed:.3f}"


def _panels(case: Case, part: Sequence[Prediction]) -> str:
    """Curves by ranks: images per second, efficiency, and the share of an iteration that a rank
    only waits for others. All have the designs in one order, so in the same colours."""
    found = dict(curves(part))
    lines = {design: found.get(design, []) for design in case.designs}
    alone = [one.images for one in part if one.ranks == 1]

    def series(value: Callable[[Prediction], float]) -> dict[str, Points]:
        return {name: [(one.ranks, value(one)) for one in line] for name, line in lines.items()}

    rates = series(lambda one: one.images)
    if alone:
        sizes = sorted({one.ranks for one in part})
        rates["perfect"] = [(ranks, ranks * alone[0]) for ranks in sizes]
    efficiency = series(lambda one: 100 * one.efficiency)
    exposed = series(lambda one: 100 * one.exposed / one.ms)
    return (
        panel("Images per second", rates, "ranks", log="xy")
        + panel("Efficiency, %", efficiency, "ranks", log="x")
        + panel("Exposed communication, % of an iteration", exposed, "ranks", log="x")
    )


def _designs(case: Case) -> str:
    """How to train by them."""
    servers = (case.args.servers or "K").partition("/")[0]
    made = {design: flags(design, case.configs[design], servers) for design in case.designs}
    for design in SERVED if case.consistency != SYNC else ():
        made[design] += f" --consistency {case.args.consistency}"
    rows = [(design, f"osucaffe train {words}") for design, words in made.items() if words]
    rows += [(design, "only predicted") for design, words in made.items() if not words]
    return facts(rows)


def _numbers(part: Sequence[Prediction]) -> str:
    if not part:
        return ""
    heads = ("ranks", "design", *_HEADS, "tenth", "9/10")
    rows = [(p.ranks, p.design, *_cells(p), f"{p.low:.3f}", f"{p.high:.3f}") for p in part]
    return table(heads, rows)
