"""Runs Python in a separate process, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python(
    *arguments: str, cwd: Path = ROOT, timeout: float = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS`, with these changes of the environment; what it prints comes back.

    timeout: seconds that only a hang takes.
    """
    line, environment = [sys.executable, *arguments], os.environ | environment
    return subprocess.run(
        line, env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False
    )
