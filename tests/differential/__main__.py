"""Runs random nets in every configuration, and compares them with the reference.

    python -m tests.differential --seconds 600 --seed 1 --workers 2
    python -m tests.differential --nets 5000 --gpu --precision bf16 --wide
    python -m tests.differential --emulated --wide        (a GPU's kernels, as C++ on the CPU)
    python -m tests.differential --file net.prototxt      (such nets; --minimize: smaller ones)

Net N of a seed is always the same. It is checked in a child of this process, which may crash or
hang. What fails is made smaller and printed; exit code 1.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy: there are as many processes as cores
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import contextlib
import gc
import importlib.util
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from osucaffe.backends.backend import Backend
from osucaffe.proto import caffe_pb2
from tests.children import Ended, Limits, run_all

from . import report, stored
from .compare import CONFIGS, Result, check, chosen
from .minimize import apart, minimize
from .random_nets.generate import generate

LIMITS = Limits(120.0, 120.0)
"""Seconds after which a net hangs."""
BATCH, GPU_BATCH = 20, 100
"""Nets that one child checks."""
MAX_PRINTED = 20
"""Failures of different sorts that are made smaller."""


def has_reference() -> bool:
    """Whether PyTorch is here."""
    return importlib.util.find_spec("torch") is not None


def make_backend(args: argparse.Namespace, number: int = 0) -> Backend:
    """What the nets run on. number: of the child."""
    if not (args.gpu or args.emulated):
        from osucaffe.backends.cpu import Cpu

        return Cpu()
    from .untimed import UntimedTuner, try_all

    try_all()
    backend = _emulated(args.precision) if args.emulated else _gpu(args.precision, number)
    backend.tuner = UntimedTuner(backend, "none")
    return backend


def _emulated(precision: str) -> Any:
    import pytest

    from tests.backends.cuda.emulated import emulate

    folder = os.environ.setdefault("OSUCAFFE_TEST_KERNELS", str(Path("build/kernels").resolve()))
    Path(folder).mkdir(parents=True, exist_ok=True)
    return emulate(pytest.MonkeyPatch(), precision)


def _gpu(precision: str, number: int) -> Any:
    from osucaffe.backends.cuda import Cuda
    from tests.backends.cuda.compiler import compile_here

    compile_here()
    count = importlib.import_module("cupy").cuda.runtime.getDeviceCount()
    return Cuda(number % count, precision)


class Search:
    """Checks nets; counts what has been tried, and what failed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.batch = GPU_BATCH if args.gpu else BATCH
        self.nets = 0
        self.types: Counter[str] = Counter()
        self.compared: Counter[str] = Counter()
        self.explained: Counter[str] = Counter()
        self.failed: dict[str, list[int]] = {}
        """Numbers of nets, by the sort of their first difference."""

    def generate(self, number: int) -> caffe_pb2.NetParameter:
        """A net."""
        return generate(self.args.seed, number, wide=self.args.wide)

    def run(self) -> None:
        """Check nets until time is over."""
        args, size = self.args, self.batch
        last = min(args.nets, sys.maxsize - size)
        batches = (range(n, min(n + size, last)) for n in range(args.first, last, size))
        limits = {"processes": args.workers, "seconds": args.seconds, "limits": LIMITS}
        run_all(self.begin, {"nets": batches}, self.count, **limits)

    @contextlib.contextmanager
    def begin(self) -> Iterator[Callable[[int], dict[str, Any]]]:
        """What children do: they check nets by number."""
        logging.disable()
        made: list[Backend] = []

        def run(number: int) -> dict[str, Any]:
            if not made:
                made.append(make_backend(self.args, number // self.batch))
            if number % 50 == 0:
                gc.collect()  # nets refer to themselves, and hold memory of a GPU
            return self.check(number, made[0])

        yield run

    def check(self, number: int, backend: Backend) -> dict[str, Any]:
        """What becomes of a net."""
        net = self.generate(number)
        try:
            result = check(
                net,
                backend,
                precision=self.args.precision,
                configs=chosen(number) if self.args.quick else tuple(CONFIGS),
                with_reference=has_reference() and not self.args.stored,
                stored=number if self.args.stored else None,
            )
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            result = Result([("the comparison", "", text)], {}, {})  # type: ignore[list-item]
        return {"types": sorted({layer.type for layer in net.layer}), **result._asdict()}

    def count(self, number: int, result: Any) -> None:
        """Take in what became of a net."""
        if isinstance(result, Ended):
            text = f"{result.what} at {result.where or '?'}"
            self.fail(number, text, text)
            return
        self.nets += 1
        self.types.update(result["types"])
        self.compared.update(result["compared"])
        self.explained.update(result["explained"])
        if result["differences"]:
            config, key, text = result["differences"][0]
            self.fail(number, _sort(config, key, text), f"{config}: {key}: {text}")

    def fail(self, number: int, sort: str, text: str) -> None:
        """Note a failure."""
        self.failed.setdefault(sort, []).append(number)
        print(f"net {number} of seed {self.args.seed}: {text}", flush=True)

    def show(self) -> None:
        """Print what failed first of each sort, made smaller."""
        for sort, numbers in list(self.failed.items())[:MAX_PRINTED]:
            print(f"\n## {sort} ({len(numbers)} nets, the first is {numbers[0]})", flush=True)
            folder = Path("build/differential")
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{self.args.seed}-{numbers[0]}.prototxt"
            path.write_text(str(self.generate(numbers[0])))
            command = [sys.executable, "-m", "tests.differential", "--file", str(path)]
            command += ["--minimize", f"--precision={self.args.precision}"]
            command += ["--gpu"] * self.args.gpu + ["--emulated"] * self.args.emulated
            subprocess.run(command, stderr=subprocess.DEVNULL)


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
    parser.add_argument("--wide", action="store_true", help="channels for large convolutions")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--emulated", action="store_true", help="on a GPU of C++ and NumPy")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--write", action="store_true", help="add the counts to benchmarks/results")
    parser.add_argument("--file", type=Path, nargs="+", help="check these nets only")
    parser.add_argument("--minimize", action="store_true", help="make it smaller")
    args = parser.parse_args()
    if args.stored:
        args.seed, args.nets, args.quick = stored.SEED, min(args.nets, stored.COUNT), True
    if args.file:
        return max(show_file(args, path) for path in args.file)
    if not has_reference() and not args.stored:
        print("without PyTorch: the configurations are compared with each other only")
    elif not args.stored:
        from .reference import run  # noqa: F401 (so that not each of the children has to)
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
