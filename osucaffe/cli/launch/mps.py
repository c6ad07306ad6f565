"""The use of NVIDIA's Multi-Process Service (MPS), which lets kernels of several processes run
on a GPU at once: its daemon is found, or started and stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_SHORT = "/tmp" if os.access("/tmp", os.W_OK) else None
"""A folder for sockets, whose paths must be short."""
_PATIENCE = 60.0
"""Seconds after which a silent daemon is given up."""


@dataclass(frozen=True)
class Service:
    """The environment variables of processes that may run under MPS. status: a line for the log."""

    status: str
    variables: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def served() -> Iterator[Service]:
    """Provides MPS: a running daemon is used as it is. Else one is started for the duration, with
    separate folders, if permitted."""
    if shutil.which(CONTROL) is None:
        yield Service(f"without MPS, as there is no {CONTROL}")
        return
    if running():
        yield Service("under MPS, which was running")
        return
    with tempfile.TemporaryDirectory(prefix="osucaffe-mps-", dir=_SHORT) as folder:
        variables = {_PIPES: f"{folder}/pipes", _LOGS: f"{folder}/logs"}
        for path in variables.values():
            Path(path).mkdir()
        why = _start(variables)
        if why is not None:
            yield Service(f"without MPS, which does not start ({why})")
            return
        try:
            yield Service("under MPS, started for this run", variables)
        finally:
            _ask(f"quit -t {_PATIENCE / 2:.0f}", variables)


def running() -> bool:
    """Whether a daemon answers that processes started as this one would use."""
    return shutil.which(CONTROL) is not None and _ask("get_server_list", {})


def _start(variables: Mapping[str, str]) -> str | None:
    """Start the daemon. Returns the reason if it does not start."""
    # All GPUs are its: those that CUDA_VISIBLE_DEVICES names are its clients' choice.
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    log = Path(variables[_LOGS]) / "start"
    with log.open("w") as file:  # not a pipe, which the daemon might keep open
        try:
            done = subprocess.run(
                [CONTROL, "-d"],
                env=environment | dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                timeout=_PATIENCE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    if done.returncode == 0 and _ask("get_server_list", variables):
        return None
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def _ask(command: str, variables: Mapping[str, str]) -> bool:
    """Send the daemon a command. Returns whether one answers."""
    try:
        done = subprocess.run(
            [CONTROL],
            input=command + "\n",
            env=os.environ | dict(variables),
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return (
        done.returncode == 0 and "Cannot find MPS control daemon" not in done.stdout + done.stderr
    )
