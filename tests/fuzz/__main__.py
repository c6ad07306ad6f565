"""Runs mutated inputs of many kinds through the program, for some seconds or so many of each kind.

    python -m tests.fuzz --seconds 600 --seed 1 --processes 2 --kinds net,lmdb
    python -m tests.fuzz --kind lmdb --file found/lmdb-1-4711      (one input again, with traceback)

Input number N of a kind and a seed is always the same. What fails (a signal, an exception that is
no message, a hang, memory without end) is made smaller and written to a file; exit code 1.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy: children are forks
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import contextlib
import functools
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import results
from tests.children import run_all

from .inputs import Kind, make_input, make_kinds
from .runner import BIG, GOOD, REFUSED, Input, Outcome, begin, minimize, run_apart
from .targets import KINDS, TARGETS, prepare, warm

BATCH = 200
"""Inputs that one child runs, at most; it starts with what this process has."""
_ROOM = 1 << 30
"""Bytes that inputs and what comes of them have in memory, if there are as many."""

_NAME = "fuzz-cpu"
_COLUMNS = ("kind", "inputs", "good", "refused", "too big", "what failed")


def batches(name: str, kind: Kind, seed: int, most: int) -> Iterator[list[Input]]:
    """Batches of a kind, until there were `most` inputs."""
    make = functools.partial(make_input, kind, name, seed)
    for first in range(0, most, BATCH):
        numbers = range(first, min(first + BATCH, most))
        yield [Input(name, f"{seed}-{n}", functools.partial(make, n)) for n in numbers]


def of_files(paths: list[Path]) -> Iterator[list[Input]]:
    """Files; their names begin with their kinds', and a dash."""
    named = [(path.name.partition("-"), path) for path in paths]
    yield [Input(kind, name, path.read_bytes) for (kind, _, name), path in named]


class Fuzzer:
    """Runs inputs; `counts` of outcomes by kind, `seconds` that children were there for it,
    `found`: the first failure of each sort."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.seconds: Counter[str] = Counter()
        self.found: dict[tuple[str, Outcome], Path] = {}

    def run(self, work: dict[str, Iterator[list[Input]]], processes: int, seconds: float) -> None:
        """Run all of the work, or begin none of it any more when so many seconds are over."""
        self.seconds = run_all(begin, work, self.count, processes=processes, seconds=seconds)

    def count(self, given: Input, result: Sequence[str]) -> None:
        """Take in what became of an input."""
        outcome = Outcome(*result)
        if outcome.what == "hang" and not (alone := run_apart(given.kind, given.make())).failed:
            outcome = alone  # it was the other programs of a busy machine
        name, _, make = given
        self.counts[name][outcome.what] += 1
        if not outcome.failed or (name, outcome) in self.found:
            return
        path = self.out / f"{name}-{given.name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make())
        self.found[name, outcome] = path
        print(f"{name}: {outcome.what} at {outcome.where or '?'}: {path}", flush=True)
        if (alone := run_apart(name, make())) == outcome:
            path.write_bytes(minimize(name, make(), outcome))
        else:  # it takes what came before in the same child
            print(f"alone it is {alone.what}; it takes some of the {BATCH} before it", flush=True)

    def report(self, seconds: float) -> str:
        """The counts by kind, and how to run again what failed."""
        lines = []
        for name, counts in self.counts.items():
            told = ", ".join(f"{what} {count:,}" for what, count in sorted(counts.items()))
            took = self.seconds[name]
            rate = f"{counts.total() / took:,.0f}/s" if took else ""
            lines.append(f"{name:12} {counts.total():>9,} {rate:>10}  {told}")
        total = sum(counts.total() for counts in self.counts.values())
        lines.append(f"{'all':12} {total:>9,} {total / max(seconds, 1e-9):>8,.0f}/s")
        for (name, outcome), path in self.found.items():
            lines.append(f"failed: {outcome.what} at {outcome.where or '?'}")
            lines.append(f"  {sys.executable} -m tests.fuzz --kind {name} --file {path}")
        return "\n".join(lines)


@contextlib.contextmanager
def prepared(names: list[str]) -> Iterator[dict[str, Kind]]:
    """The kinds of these names; meanwhile the working folder is a new one with what they need."""
    before = Path.cwd()
    memory = Path("/dev/shm")  # where files are made several times as fast
    usable = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= _ROOM
    with tempfile.TemporaryDirectory(dir=memory if usable else None) as parent:
        folder = Path(parent, "corpus")
        folder.mkdir()
        os.chdir(folder)
        try:
            prepare(folder)
            kinds = make_kinds(folder)
            warm()
            yield {name: kinds[name] for name in names}
        finally:
            os.chdir(before)


def add_to_results(counts: Mapping[str, Counter[str]], seed: int, seconds: float) -> str:
    """Add a run's counts of outcomes by kind to benchmarks/results. Returns the file's name."""
    record = results.earlier(_NAME)
    found = {kind: dict(sorted(each.items())) for kind, each in sorted(counts.items())}
    run = {
        "date": results.today(),
        "revision": _revision(),
        "seed": seed,
        "seconds": round(seconds),
        "counts": found,
    }
    record = {"machine": results.machine(), "runs": [*record.get("runs", []), run]}
    return str(results.write(_NAME, record, _summary(record["runs"])))


def _revision() -> str:
    line = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(line, capture_output=True, text=True).stdout.strip() or "unknown"


def _summary(runs: list[dict]) -> str:
    total: dict[str, Counter[str]] = {}
    for run in runs:
        for kind, counts in run["counts"].items():
            total.setdefault(kind, Counter()).update(counts)
    total["all"] = sum(total.values(), Counter())
    rows = []
    for kind, counts in total.items():
        failed = {name: each for name, each in counts.items() if name not in (GOOD, REFUSED, BIG)}
        told = ", ".join(f"{name} {each}" for name, each in failed.items()) or "nothing"
        numbers = counts.total(), counts[GOOD], counts[REFUSED], counts[BIG]
        rows.append([kind, *(f"{number:,}" for number in numbers), told])
    told = ", ".join(
        f"{run['date']} seed {run['seed']} ({run['seconds']} s"
        + (f", revision {run['revision']})" if "revision" in run else ")")
        for run in runs
    )
    return (
        f"# {total['all'].total():,} mutated inputs\n\n"
        f"`make fuzz WRITE=1`: {told}. Good: the input is valid, or what it asks for can be done. "
        "Refused: one message. Too big: more memory than a process may have. What fails lies in "
        "tests/fuzz/regressions once it is mended.\n\n" + results.table(_COLUMNS, rows) + "\n"
    )


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main() -> int:
    """Read the command line and run. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--inputs", type=int, default=sys.maxsize, help="of each kind, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kinds", type=_names, default=list(KINDS), help="with commas")
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="run these, too")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="where failures go")
    parser.add_argument("--write", action="store_true", help="add the counts to benchmarks/results")
    parser.add_argument("--kind", choices=TARGETS, help="run --file, in this process")
    parser.add_argument("--file", type=Path)
    args = parser.parse_args()
    if args.kind:
        content = args.file.read_bytes()
        with prepared([]), tempfile.TemporaryDirectory() as folder:
            TARGETS[args.kind](content, Path(folder))
        return 0
    started = time.monotonic()
    fuzzer = Fuzzer(args.out.resolve())
    work = {"files": of_files([path.resolve() for path in args.files])}
    with prepared(args.kinds) as kinds, contextlib.suppress(KeyboardInterrupt):
        for name, kind in kinds.items():
            work[name] = batches(name, kind, args.seed, args.inputs)
        fuzzer.run(work, args.processes, args.seconds)
    seconds = time.monotonic() - started
    print(fuzzer.report(seconds))
    if args.write:
        print(add_to_results(fuzzer.counts, args.seed, seconds))
    return bool(fuzzer.found)


if __name__ == "__main__":
    sys.exit(main())
