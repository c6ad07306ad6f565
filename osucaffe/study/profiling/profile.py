"""`osucaffe profile`: recorded profiles of communication as tables and a picture, one alone or
two side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...api import tables
from ...cli import plots
from ...errors import UserError
from ...files import read_bytes
from ...parsing import from_json
from .options import Profile
from .views import draw_sizes, table


def run(options: Profile) -> None:
    """Print, and draw."""
    paths = [options.profile, *([options.other] if options.other else [])]
    summaries = [_read(path) for path in paths]
    lines = compare(summaries, _labels(paths)) if options.other else table(summaries[0])
    print(*lines, sep="\n")
    if options.plot:
        _draw(summaries, _labels(paths), options.plot)
        print(f"wrote {options.plot}")


def _labels(paths: Sequence[str]) -> Sequence[str]:
    """Names of the files, as short as they differ."""
    short = [Path(path).stem for path in paths]
    return short if len(set(short)) == len(short) else paths


def _read(path: str) -> dict[str, Any]:
    """A profile with iterations. UserError for other files."""
    try:
        summary: dict[str, Any] = from_json(read_bytes(path))
        if summary["iterations"] and summary["median_ms"] and summary["operations"]:
            return summary
    except (ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{path}: not a profile written by `osucaffe train --comm_profile`")


def compare(summaries: Sequence[dict[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """Lines with both: the parts of an iteration, then what travelled, by operation and size."""
    for what in ("ranks", "iterations"):
        yield f"{what}: {' and '.join(str(summary[what]) for summary in summaries)}"
    yield "Milliseconds of an iteration, the ranks' mean:"
    wholes = [{"all": summary["wall_ms"]} | summary["parts_ms"] for summary in summaries]
    rows = [(part, *_pair(*(whole[part] for whole in wholes))) for part in wholes[0]]
    yield from tables.table("<>>>", ("part", *names, "ratio"), *rows)
    yield "Milliseconds of what travelled, by operation, level and size, and what of it is exposed:"
    found = [_by_size(summary["operations"]) for summary in summaries]
    lines = []
    for key in dict.fromkeys([*found[0], *found[1]]):
        (how, ms, exposed), (other, other_ms, other_exposed) = (
            each.get(key, ("-", None, None)) for each in found
        )
        algorithms = how if how == other else f"{how}, {other}"
        lines.append((*key, algorithms, *_pair(ms, other_ms), *_pair(exposed, other_exposed)))
    heads = "operation", "level", "size", "algorithms", *names, "ratio"
    exposures = *(f"{name}: exposed" for name in names), "ratio"
    yield from tables.table("<<<<" + 6 * ">", (*heads, *exposures), *lines)


def _by_size(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, ...], tuple[str, float, float]]:
    """By operation, level and size: algorithms, milliseconds, and those exposed."""
    found: dict[tuple[str, ...], tuple[str, float, float]] = {}
    for row in rows:
        key = row["operation"], row["level"], row["size"]
        how, ms, exposed = row["algorithm"], row["ms"], row["exposed_ms"]
        if key in found:
            before = found[key]
            how, ms, exposed = f"{before[0]} + {how}", before[1] + ms, before[2] + exposed
        found[key] = how, ms, exposed
    return found


def _pair(first: float | None, second: float | None) -> tuple[str, str, str]:
    """Two times and their ratio; "-" for what is not there."""
    times = ["-" if value is None else f"{value:.3f}" for value in (first, second)]
    return times[0], times[1], f"{second / first:.2f}" if first and second is not None else "-"


def _draw(summaries: Sequence[dict[str, Any]], labels: Sequence[str], path: str) -> None:
    """Bars by operation and size, on one scale."""
    rows = max(len(summary["operations"]) for summary in summaries)
    figure, axes = plots.pyplot().subplots(
        *(1, len(summaries)), figsize=(8 * len(summaries), 2 + 0.5 * rows), sharex=True,
        layout="constrained", squeeze=False,
    )  # fmt: skip
    for each, summary, label in zip(axes[0], summaries, labels, strict=True):
        draw_sizes(each, summary)
        each.set_title(f"{label}: {each.get_title()}")
    plots.save(figure, path)
