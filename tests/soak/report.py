"""Owns what is told of the rounds: how many of each fault, how they ended, what went wrong."""

from __future__ import annotations

from collections import Counter

from benchmarks import results

from .jobs import LONGEST, Round

_COLUMNS = ("fault", "rounds", "ended", "went on", "longest s", "what went wrong")


def _rows(rounds: dict[str, list[Round]]) -> list[list[str]]:
    rows = []
    for fault, each in rounds.items():
        ended = [done.seconds for done in each if done.code]
        wrong = Counter(what for done in each for what in done.wrong)
        told = ", ".join(f"{what} {count}" for what, count in wrong.items()) or "nothing"
        longest = f"{max(ended):.1f}" if ended else "-"
        rows.append(
            [fault, str(len(each)), str(len(ended)), str(len(each) - len(ended)), longest, told]
        )
    return rows


def text(rounds: dict[str, list[Round]]) -> str:
    """A table, a fault a line."""
    return results.table(_COLUMNS, _rows(rounds))


def write(name: str, rounds: dict[str, list[Round]], seed: int) -> str:
    """Write it to benchmarks/results. Returns the file's name."""
    machine = results.machine()
    record = {
        "date": results.today(),
        "machine": machine,
        "seed": seed,
        "rounds": {fault: [done._asdict() for done in each] for fault, each in rounds.items()},
    }
    count = sum(len(each) for each in rounds.values())
    intro = (
        f"# {count} runs that were struck\n\n"
        f"`python -m tests.soak --seed {seed}`, {record['date']}: {machine['cpu']}, "
        f"{machine['cores']} cores. A small training is struck at a random moment after its first "
        "snapshot, and goes on from the newest; ended: with an exit code other than 0; longest: "
        "until no process of it was left. What would have gone wrong: a snapshot that cannot be "
        f"read, a process that runs on after {LONGEST:.0f} s, a traceback, an exit code 0 of what "
        "is not through, ranks that do not say for whom they waited, another bit in the weights at "
        "the end than of a run that was left alone.\n\n"
    )
    return str(results.write(f"{name}-{record['date']}", record, intro + text(rounds) + "\n"))
