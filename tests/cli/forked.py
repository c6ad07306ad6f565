"""Owns the program with its modules imported: each run is a fork of it, which saves most of the
second that a start takes. `Template` is for tests; the rest is that process.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MODULES = (
    *("osucaffe.cli", "osucaffe.solvers.solver", "osucaffe.solvers.signals", "osucaffe.parallel"),
    *("osucaffe.comm.create", "osucaffe.pycaffe", "osucaffe.backends.cpu.onednn", "matplotlib"),
    *("osucaffe.cli.train.training", "osucaffe.cli.score.classify", "osucaffe.cli.data.data"),
)


class Template:
    """A process that forks a run of `osucaffe` for each call."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, arguments: Sequence[str], folder: Path, environment: dict[str, str]
    ) -> tuple[int, str, str]:
        """Run the command in a folder, with this process's limit of files, and variables that no
        library reads when it is loaded. Returns its exit code, and what it wrote to both streams.
        """
        assert self._process.stdin
        assert self._process.stdout
        with tempfile.TemporaryDirectory() as temporary:
            streams = [Path(temporary) / name for name in ("out", "err")]
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)
            request = [list(arguments), str(folder), environment, limit, *map(str, streams)]
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            out, err = (path.read_text() for path in streams)
        return code, out, err

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def _serve() -> None:
    """Fork a run for each request, until there are no more."""
    for line in sys.stdin:
        if not (child := os.fork()):
            _become(*json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(
    arguments: list[str], folder: str, environment: dict[str, str], limit: list[int], *streams: str
) -> None:
    """Be what `python -m osucaffe` starts."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams, 1):
        file = os.open(stream, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    resource.setrlimit(resource.RLIMIT_FSIZE, tuple(limit))
    sys.argv[1:] = arguments
    sys.path.insert(0, os.getcwd())  # as -m does
    runpy.run_module("osucaffe", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for module in MODULES:
        importlib.import_module(module)
    _serve()
