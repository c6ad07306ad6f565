"""Running the real program in tests: `Cli` starts it in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from osucaffe.cli import main
from tests.forked import run

ROOT = Path(__file__).resolve().parents[2]

NET = """\
name: "tiny"
layer {{
  name: "data" type: "Data" top: "data" top: "label"
  transform_param {{ scale: 0.00390625 {transform} }}
  data_param {{ source: "{source}" batch_size: 8 backend: LMDB }}
}}
layer {{
  name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param {{ num_output: {outputs} weight_filler {{ type: "xavier" }} }}
}}
layer {{
  name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy"
  include {{ phase: TEST }}
}}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
"""

DEPLOY = """\
layer {
  name: "data" type: "Input" top: "data"
  input_param { shape { dim: 2 dim: 1 dim: 28 dim: 28 } }
}
layer {
  name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } }
}
"""

SOLVER = """\
net: "net.prototxt"
test_iter: 2
test_interval: 5
base_lr: 0.1
lr_policy: "step"
gamma: 0.5
stepsize: 4
momentum: 0.9
display: 2
max_iter: 10
snapshot_prefix: "run"
random_seed: 1
"""


@dataclass(frozen=True)
class Result:
    """How a run of the program ended."""

    code: int
    out: str
    err: str


class Cli:
    """Runs `osucaffe` in `folder`, on one thread."""

    def __init__(self, folder: Path, fixtures: Path) -> None:
        self.folder = folder
        self.fixtures = fixtures

    def command(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "osucaffe", *arguments]

    def environment(self, **changes: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "OSUCAFFE_DEBUG": "", **changes}

    def __call__(self, *arguments: str, **environment: str) -> Result:
        """A run in this process, unless it starts ranks, or changes what belongs to a process."""
        if environment or any(word.startswith(("--ranks", "--quiet")) for word in arguments):
            command = ["osucaffe", *arguments]
            return Result(*run(command, str(self.folder), self.environment(**environment)))
        out, err = io.StringIO(), io.StringIO()
        with (
            patch.dict(os.environ, OSUCAFFE_DEBUG=""),
            patch.object(logging.getLogger(), "handlers", []),  # pytest's
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                code = main(arguments)
            except SystemExit as error:  # of a wrong command line
                code = int(error.code or 0)
        return Result(code, out.getvalue(), err.getvalue())

    def ok(self, *arguments: str, **environment: str) -> Result:
        """A run that does what it is to do."""
        result = self(*arguments, **environment)
        assert result.code == 0, result.err
        return result

    def fails(self, *arguments: str, **environment: str) -> Result:
        """A run that refuses what it is given."""
        result = self(*arguments, **environment)
        assert result.code == 1, result.err
        return result

    def train_without_end(self, *arguments: str) -> subprocess.Popen[str]:
        """A run that goes on until it gets a signal, and has done its first test."""
        self.write_solver("max_iter: 100000000\ndisplay: 100\ntest_interval: 100000000")
        program = subprocess.Popen(
            self.command(arguments), cwd=self.folder, env=self.environment(),
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert program.stderr
        for line in program.stderr:
            if "output #1" in line:
                break
        return program

    def write(self, name: str, text: str) -> str:
        """Write a file in the folder; returns its name."""
        (self.folder / name).write_text(text)
        return name

    def write_net(
        self, *, source: str | None = None, outputs: int = 10, transform: str = ""
    ) -> str:
        """Write net.prototxt: an inner product on 200 digits."""
        if source is None:
            source = str(self.fixtures / "formats" / "mnist200_lmdb")
        text = NET.format(source=source, outputs=outputs, transform=transform)
        return self.write("net.prototxt", text)

    def write_solver(self, changes: str = "") -> str:
        """Write solver.prototxt. changes: fields that replace those of SOLVER."""
        fields = dict(line.split(":", 1) for line in (SOLVER + changes).strip().splitlines())
        text = "\n".join(f"{name}:{value}" for name, value in fields.items())
        return self.write("solver.prototxt", text)


@pytest.fixture
def cli(tmp_path: Path, fixtures: Path) -> Cli:
    """The program, in an empty folder."""
    return Cli(tmp_path, fixtures)


@pytest.fixture
def ready(cli: Cli) -> Cli:
    """The program, with a net and a solver in its folder."""
    cli.write_net()
    cli.write_solver()
    return cli
