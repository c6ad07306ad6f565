"""Standard streams that the shell closed: no other file gets their numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """import os, sys
from osucaffe.cli import main
code = main(["layers"])
found = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
with open(sys.argv[1], "w") as file:
    print(code, *found, sep="\\n", file=file)
"""


@pytest.mark.parametrize("closed", ["0", "1", "2", "012"])
def test_the_program_runs_without(tmp_path: Path, closed: str) -> None:
    close = " ".join(f"{number}>&-" for number in closed)
    line = [sys.executable, "-c", PROGRAM, str(tmp_path / "found")]
    subprocess.run(["bash", "-c", f'exec "$@" {close}', "bash", *line], timeout=600, check=True)
    code, *files = (tmp_path / "found").read_text().splitlines()
    assert code == "0"
    assert {files[int(number)] for number in closed} == {"/dev/null"}
