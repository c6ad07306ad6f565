"""Runs random nets in every configuration, and compares them with the reference.

    python -m tests.differential --seconds 600 --seed 1 --workers 2
    python -m tests.differential --nets 5000 --gpu --precision bf16
    python -m tests.differential --file net.prototxt      (such nets; --minimize: smaller ones)

Net N of a seed is always the same. A worker is a process that may crash or hang: it is started
again behind the net that it was at. What fails is made smaller and printed; exit code 1.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy: there are as many processes as cores
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import faulthandler
import gc
import importlib.util
import json
import logging
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from osucaffe.backends.backend import Backend
from osucaffe.proto import caffe_pb2

from . import report, stored
from .compare import CONFIGS, Result, check, chosen
from .minimize import apart, minimize
from .random_nets.generate import generate

LONGEST = 120.0
"""Seconds after which a net hangs."""
MOST_PRINTED = 20
"""Failures of different sorts that are made smaller."""


def has_reference() -> bool:
    """Whether PyTorch is here."""
    return importlib.util.find_spec("torch") is not None


def make_backend(args: argparse.Namespace) -> Backend:
    """What the nets run on."""
    if args.gpu:
        from osucaffe.backends.cuda import Cuda

        from .untimed import UntimedTuner

        count = importlib.import_module("cupy").cuda.runtime.getDeviceCount()
        backend = Cuda(args.first % count, args.precision)
        backend.tuner = UntimedTuner(backend, "none")
        return backend
    from osucaffe.backends.cpu import Cpu

    return Cpu()


def work(args: argparse.Namespace) -> None:
    """Check nets for the process that started this one: a line of JSON for each."""
    logging.disable()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    backend, step = make_backend(args), args.workers
    for number in range(args.first, args.nets, step):
        net = generate(args.seed, number)
        try:
            result = check(
                net,
                backend,
                precision=args.precision,
                configs=chosen(number) if args.quick else tuple(CONFIGS),
                with_reference=has_reference() and not args.stored,
                stored=number if args.stored else None,
            )
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            result = Result([("the comparison", "", text)], {}, {})  # type: ignore[list-item]
        line = {
            "number": number,
            "types": sorted({layer.type for layer in net.layer}),
            "differences": result.differences,
            "compared": result.compared,
            "explained": result.explained,
        }
        print(json.dumps(line), flush=True)
        if number % 50 < step:
            gc.collect()  # nets refer to themselves, and hold memory of a GPU


class Worker:
    """A process that checks every `workers`-th net from `first` on."""

    def __init__(self, args: argparse.Namespace, first: int) -> None:
        self.next = first
        command = [sys.executable, "-m", "tests.differential", "--work", f"--first={first}"]
        for name in "seed", "workers", "nets", "precision":
            command.append(f"--{name}={getattr(args, name)}")
        command += [f"--{name}" for name in ("gpu", "quick", "stored") if getattr(args, name)]
        self._trace = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._trace)
        assert self.process.stdout
        self.pipe = self.process.stdout
        self.since = time.monotonic()
        self._rest = b""

    def lines(self, step: int) -> list[dict[str, Any]]:
        """What it has told since; to be called when the pipe is readable."""
        self.since = time.monotonic()
        content = os.read(self.pipe.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + content).split(b"\n")
        found = [json.loads(line) for line in lines]
        self.next += step * len(found)
        if not content:
            self.process.wait()
        return found

    def end(self) -> str:
        """Kill it, if need be; how it ended, and where."""
        hangs = self.process.returncode is None
        if hangs:
            self.process.send_signal(signal.SIGUSR1)  # which lets it tell where it is
            time.sleep(0.5)
            self.process.kill()
        code = self.process.wait()
        self.pipe.close()
        self._trace.seek(0)
        trace = self._trace.read().decode(errors="replace")
        found = re.search(r'File ".*?/(osucaffe/\S+\.py)", line (\d+)', trace)
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{'hang' if hangs else name}{f' at {found[1]}:{found[2]}' if found else ''}"


class Search:
    """Counts what has been tried, and what failed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.nets = 0
        self.types: Counter[str] = Counter()
        self.compared: Counter[str] = Counter()
        self.explained: Counter[str] = Counter()
        self.failed: dict[str, list[int]] = {}
        """Numbers of nets, by the sort of their first difference."""

    def run(self) -> None:
        """Check nets until time is over."""
        args = self.args
        end = time.monotonic() + args.seconds
        workers = [Worker(args, first) for first in range(args.first, args.first + args.workers)]
        while workers and time.monotonic() < end:
            ready = select.select([worker.pipe for worker in workers], [], [], 1.0)[0]
            for worker in list(workers):
                hangs = time.monotonic() - worker.since > LONGEST
                if worker.pipe in ready:
                    for line in worker.lines(args.workers):
                        self.count(line)
                if worker.process.returncode is None and not hangs:
                    continue
                workers.remove(worker)
                number, ended = worker.next, worker.end()
                if number < args.nets:
                    self.fail(number, ended, ended)
                    workers.append(Worker(args, number + args.workers))
        for worker in workers:
            worker.end()

    def count(self, line: dict[str, Any]) -> None:
        """Take in what a worker tells of a net."""
        self.nets += 1
        self.types.update(line["types"])
        self.compared.update(line["compared"])
        self.explained.update(line["explained"])
        if line["differences"]:
            config, key, text = line["differences"][0]
            self.fail(line["number"], _sort(config, key, text), f"{config}: {key}: {text}")

    def fail(self, number: int, sort: str, text: str) -> None:
        """Note a failure."""
        self.failed.setdefault(sort, []).append(number)
        print(f"net {number} of seed {self.args.seed}: {text}", flush=True)

    def show(self) -> None:
        """Print what failed first of each sort, made smaller."""
        for sort, numbers in list(self.failed.items())[:MOST_PRINTED]:
            print(f"\n## {sort} ({len(numbers)} nets, the first is {numbers[0]})", flush=True)
            folder = Path("build/differential")
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{self.args.seed}-{numbers[0]}.prototxt"
            path.write_text(str(generate(self.args.seed, numbers[0])))
            command = [sys.executable, "-m", "tests.differential", "--file", str(path)]
            command += ["--minimize", f"--precision={self.args.precision}"]
            subprocess.run(command + ["--gpu"] * self.args.gpu, stderr=subprocess.DEVNULL)


def _sort(config: str, key: str, text: str) -> str:
    parts = key.split("/")
    return f"{config}: {parts[0]} {parts[2]}" if len(parts) > 3 else f"{config}: {text[:60]}"


def show_file(args: argparse.Namespace, path: Path) -> int:
    """Check the net of a file, perhaps make it smaller, and print what differs."""
    net = text_format.Parse(path.read_text(), caffe_pb2.NetParameter())

    def found(each: caffe_pb2.NetParameter) -> list[str]:
        try:
            differences = check(
                each,
                make_backend(args),
                precision=args.precision,
                with_reference=has_reference(),
                configs=configs,
            ).differences
        except Exception as error:
            return [f"the comparison|{type(error).__name__}: {error}"]
        return [f"{_sort(*each)}|{each.key}: {each.text}" for each in differences]

    configs: Sequence[str] = tuple(CONFIGS)
    if has_reference():  # here, so that not each of the children has to
        from .reference import run  # noqa: F401
    texts = apart(found, net)
    if args.minimize and texts:
        sort = sorted(texts)[0].partition("|")[0]
        configs = [each for each in CONFIGS if sort.startswith(each)] or tuple(CONFIGS)
        net = minimize(net, lambda each: sort in {t.partition("|")[0] for t in apart(found, each)})
        print(net)
        texts = apart(found, net)
    for text in sorted(texts):
        print(f"{path.name}: {text.replace('|', ': ')}", flush=True)
    return bool(texts)


def main() -> int:
    """Read the command line and run. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nets", type=int, default=sys.maxsize, help="up to this number")
    parser.add_argument("--first", type=int, default=0, help="the number of the first net")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="three configurations a net, not five")
    parser.add_argument("--stored", action="store_true", help="the nets whose values are stored")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--write", action="store_true", help="add the counts to benchmarks/results")
    parser.add_argument("--file", type=Path, nargs="+", help="check these nets only")
    parser.add_argument("--minimize", action="store_true", help="make it smaller")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stored:
        args.seed, args.nets, args.quick = stored.SEED, min(args.nets, stored.COUNT), True
    if args.work:
        work(args)
        return 0
    if args.file:
        return max(show_file(args, path) for path in args.file)
    if not has_reference() and not args.stored:
        print("without PyTorch: the configurations are compared with each other only")
    search, started = Search(args), time.monotonic()
    search.run()
    seconds = time.monotonic() - started
    print(report.text(search, seconds), flush=True)
    if args.write:
        print(report.write(search, seconds), flush=True)
    search.show()
    return bool(search.failed)


if __name__ == "__main__":
    sys.exit(main())
