"""`oc.train`, `oc.fit` and `oc.predict`: the commands of these names, and the run of one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import read_bytes
from ..proto import read_solver
from .history import History, Plot, Row, html_rows, words
from .logs import log_of
from .model import Model, load
from .model_files import newest_model


def command(name: str, *arguments: str | Path, progress: bool | None, **options: Any) -> str:
    """Run a command of osucaffe's in a process of its own. Returns what it printed.

    options: True for a flag, lists with commas; None and False are left out. progress: show its
    last line. A failed command raises UserError with its message. An interrupt interrupts it, so
    that training writes a snapshot, and raises KeyboardInterrupt; a second one ends it at once.
    """
    whole = [sys.executable, "-P", "-m", "osucaffe", name, *map(str, arguments)]
    for option, value in options.items():
        if value is None or value is False:
            continue
        text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        whole += [f"--{option}"] if value is True else [f"--{option}={text}"]
    shown = sys.stderr.isatty() or "ipykernel" in sys.modules if progress is None else progress
    lines: list[str] = []
    interrupted = False
    # In a group of its own: Ctrl-C of a terminal or a notebook, which interrupts a whole group,
    # would interrupt it twice, and that ends it at once, without a snapshot.
    how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(whole, **how, text=True, process_group=0) as process:  # type: ignore[call-overload]
        while process.poll() is None:
            try:
                for line in process.stdout:
                    lines.append(line.rstrip("\n"))
                    if shown and lines[-1]:
                        said = lines[-1].partition("] ")[2] or lines[-1]
                        print(f"\r{said.strip()[:100]:100}", end="", file=sys.stderr, flush=True)
                process.wait()
            except KeyboardInterrupt:
                interrupted = True
                process.send_signal(signal.SIGINT)
    if shown:
        print(file=sys.stderr)
    if interrupted:
        raise KeyboardInterrupt
    if process.returncode:
        last = next((line for line in reversed(lines) if line), f"exit code {process.returncode}")
        raise UserError(last.removeprefix("osucaffe: "))
    return "\n".join(lines)


def train(
    solver: str | Path,
    *,
    ranks: int | None = None,
    gpu: int | str | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Run:
    """Train as `osucaffe train` does, in processes of their own: on several ranks, on all GPUs
    (gpu="all"), with any of the command's options as keywords (precision="bf16", best="accuracy").

    Its log goes to the folder log next to the solver (log_dir). UserError with its message.
    """
    folder = Path(options.pop("log_dir", Path(solver).parent / "log"))
    given = {"solver": solver, "ranks": ranks, "gpu": gpu, "log_dir": folder, **options}
    command("train", progress=progress, **given)
    return Run(solver, folder)


def fit(
    photos: str | Path,
    out: str | Path,
    *,
    weights: str | Path | None = None,
    gpu: int | str | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Model:
    """Make a classifier of photographs as `osucaffe fit` does: a folder for each class. The run,
    with its report, is in the folder `out`. weights: a model to fine-tune (the command's --from),
    which is by default a pretrained EfficientNet-Lite0 if it can be had; "none": training begins at
    zero. options are the command's others."""
    options |= {"out": out, "from": weights, "gpu": gpu}
    command("fit", photos, progress=progress, **options)
    return load(out)


def predict(solver: str | Path, *, cluster: str | Path, ranks: Any, **options: Any) -> Any:
    """How long training takes on a cluster, as `osucaffe predict` says. ranks: one number or a
    list. options are those of the command. Returns the document that --out writes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "prediction.json"
        given = {"solver": solver, "cluster": cluster, "ranks": ranks, "out": out, **options}
        command("predict", progress=False, **given)
        return json.loads(read_bytes(out))


class Run:
    """A run of training that is done, by its files. solver: a prototxt. logs: the folder of its
    log (default: log next to the solver)."""

    def __init__(self, solver: str | Path, logs: str | Path | None = None) -> None:
        self.solver = Path(solver)
        self._logs = Path(logs) if logs else self.solver.parent / "log"

    @property
    def history(self) -> list[Row]:
        """A row for each iteration that was displayed or tested, as `Solver.history`."""
        log = log_of([self._logs])
        return History.of(log).rows if log else []

    @property
    def log(self) -> str:
        """The text of the newest log."""
        files = sorted(self._logs.glob("osucaffe.*.log.INFO.*"), key=lambda f: f.stat().st_mtime)
        return read_bytes(files[-1]).decode(errors="replace") if files else ""

    @property
    def best(self) -> str:
        """The file of the best model (`best=` was given), or else of the newest. UserError."""
        prefix = read_solver(self.solver).snapshot_prefix
        if not (found := newest_model(prefix)):
            raise UserError(f"{self.solver}: no model found for {prefix}")
        return found[0]

    def report(self, path: str | Path | None = None, **options: Any) -> str:
        """Write `osucaffe report`'s page. Returns its path (default: report.html next to the
        solver)."""
        out = str(path or self.solver.parent / "report.html")
        log = self._logs if log_of([self._logs]) else None
        command("report", self.solver, out=out, log=log, progress=False, **options)
        return out

    def plot(self) -> Plot:
        """Curves of the history."""
        return Plot(self.history)

    def __repr__(self) -> str:
        rows = self.history
        said = f"iteration {rows[-1]['iteration']:,}, {words(rows)}" if rows else "no log"
        return f"Run of {self.solver}: {said}"

    def _repr_html_(self) -> str:
        return html_rows(self.history, repr(self))
