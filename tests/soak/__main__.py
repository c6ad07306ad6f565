"""Ends training in many ways, and counts what should never be.

    python -m tests.soak --rounds 100 --seed 1
    python -m tests.soak --faults "kill run:60,kill rank:30" --rounds 90 --write soak-cpu

A round trains in a folder of its own, ends it at a random moment (a run, a rank, the launcher or
its proxy is killed, a run is stopped for a while, a disk is full, memory is short; where namespaces
are permitted, a link between two hosts is cut, slow or loses packets, or a host stands still), and
resumes it. Counted are snapshots that cannot be read, processes that run on too long, tracebacks,
exit codes 0 of what did not end its work, ranks that do not say for whom they waited, and resumed
runs whose weights are not, bit for bit, those of a run that was left alone. Exit code 1 on any.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from benchmarks import results

from . import hosts
from .jobs import (
    ITERATIONS,
    LONGEST,
    LONGEST_RUN,
    Round,
    Task,
    await_moment,
    command,
    left,
    processes,
    resumed,
    start,
)

_COLUMNS = ("fault", "rounds", "ended", "went on", "longest s", "what went wrong")


def table(rounds: dict[str, list[Round]]) -> str:
    """A fault a line."""
    rows = []
    for fault, each in rounds.items():
        ended = [done.seconds for done in each if done.code]
        wrong = Counter(what for done in each for what in done.wrong)
        told = ", ".join(f"{what} {count}" for what, count in wrong.items()) or "nothing"
        longest = f"{max(ended):.1f}" if ended else "-"
        counts = len(each), len(ended), len(each) - len(ended)
        rows.append([fault, *map(str, counts), longest, told])
    return results.table(_COLUMNS, rows)


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
    return str(results.write(f"{name}-{record['date']}", record, intro + table(rounds) + "\n"))


FAULTS = ("kill run", "kill rank", "kill launcher", "kill proxy", "stop", "full disk", "memory")
_RANKS = {1: (), 2: ("--ranks", "2")}


def ranks_of(fault: str) -> int:
    """How many ranks the training has that is struck so."""
    return 2 if fault in ("kill rank", "kill launcher", "kill proxy", *hosts.FAULTS) else 1


def strike(task: Task, random: Random, fault: str, folder: Path, job: subprocess.Popen) -> None:
    """Do to a job that has a snapshot what the round is for."""
    if not await_moment(task, random, folder, job):
        return
    named = {"kill rank": Path(sys.executable).name, "kill proxy": "hydra_pmi_proxy"}.get(fault)
    found = [each for each, words in processes(folder).items() if Path(words[0]).name == named]
    target = random.choice(found) if found else job.pid
    try:
        os.kill(target, signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
        if fault == "stop":
            time.sleep(random.random())
            os.kill(target, signal.SIGCONT)
    except ProcessLookupError:
        pass  # it was through


def one_round(task: Task, random: Random, fault: str, folder: Path) -> Round:
    """Train, do it, and go on."""
    wrong = []
    ranks = ranks_of(fault)
    size, kind = {
        "full disk": (random.randrange(100, 800), resource.RLIMIT_FSIZE),
        "memory": (random.randrange(100, 400) << 20, resource.RLIMIT_AS),
    }.get(fault, (0, 0))
    limit = functools.partial(resource.setrlimit, kind, (size, size)) if size else lambda: None
    line = command(*_RANKS[ranks])
    job = start(task, folder, line, limit=limit)
    if not size:
        strike(task, random, fault, folder, job)
    struck = time.monotonic()
    longest = task.longest if fault.startswith("kill") else LONGEST_RUN
    while processes(folder) and time.monotonic() - struck < longest:
        time.sleep(0.02)
    seconds = time.monotonic() - struck
    for process in processes(folder):
        wrong.append("hang")
        os.kill(process, signal.SIGKILL)
    code = job.wait()
    wrong += left(folder)
    if not code and not (folder / task.last).exists():
        wrong.append("exit code 0")
    return Round(wrong + resumed(task, folder, start(task, folder, line), ranks), code, seconds)


def plan(text: str) -> list[str]:
    """The faults that a text names, with commas; some with how often, after a colon."""
    faults = []
    for each in text.split(","):
        name, _, count = each.partition(":")
        if name not in (*FAULTS, *hosts.FAULTS):
            raise argparse.ArgumentTypeError(f"{name}: there is no such fault")
        faults += [name] * int(count or 1)
    return faults


def main() -> int:
    """Read the command line and run. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=plan, help="with commas; NAME:N is N of them")
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="of the training")
    parser.add_argument("--longest", type=float, default=LONGEST, help="seconds until all end")
    parser.add_argument("--write", metavar="NAME", help="write the counts to benchmarks/results")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    faults = list(args.faults or (*FAULTS, *hosts.FAULTS))
    if not hosts.permitted():
        print("no faults between hosts: network namespaces and MPICH's mpiexec are needed (root)")
        faults = [fault for fault in faults if fault not in hosts.FAULTS]
    rounds: dict[str, list[Round]] = {}
    with tempfile.TemporaryDirectory() as top:
        task = Task(args.iterations, args.longest, {})
        for ranks in sorted(set(map(ranks_of, faults))):
            folder = Path(top, f"alone{ranks}")
            folder.mkdir()
            if start(task, folder, command(*_RANKS[ranks])).wait():
                raise SystemExit((folder / "log").read_text())
            task.wanted[ranks] = (folder / task.last).read_bytes()
        for number in range(args.rounds if faults else 0):
            if time.monotonic() > end:
                break
            fault = faults[number % len(faults)]
            folder = Path(top, str(number))
            folder.mkdir()
            random = Random(f"{args.seed}/{number}")
            one = hosts.one_round if fault in hosts.FAULTS else one_round
            done = one(task, random, fault, folder)
            rounds.setdefault(fault, []).append(done)
            for wrong in done.wrong:
                print(f"round {number}, {fault}: {wrong}", flush=True)
            shutil.rmtree(folder)
    print(table(rounds))
    if args.write:
        print(write(args.write, rounds, args.seed))
    return any(done.wrong for each in rounds.values() for done in each)


if __name__ == "__main__":
    sys.exit(main())
