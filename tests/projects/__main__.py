"""Runs the commands of docs/projects.md in clones of these projects, which it does not fetch:
`PROJECTS=folder make projects`, where folder has OWNER/NAME of each.

Each project runs in a copy. Scripts in Python 2 are translated there, as the page says.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "projects.md"
LIFT = (sys.executable, "-m", "fissix", "--write", "--nobackups", "--no-diffs", ".")
LIMIT = 600
"""Seconds that a project may take."""


def projects(page: str) -> dict[str, tuple[str, bool]]:
    """By name the commands of each, and whether its scripts are in Python 2."""
    found = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        commands = re.search(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        assert commands, section
        found[section.split(maxsplit=1)[0]] = commands[1], "Python 2" in section
    return found


def run(clone: Path, commands: str, lifts: bool) -> str:
    """What went wrong; "" if nothing did."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / clone.name
        shutil.copytree(clone, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        lines = [LIFT] * lifts + [("sh", "-ec", commands)]
        for line in lines:
            try:
                done = subprocess.run(
                    line, cwd=copy, env=os.environ | {"PATH": path}, capture_output=True,
                    text=True, timeout=LIMIT, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return f"took more than {LIMIT} s"
            if done.returncode:
                told = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
                return f"exit code {done.returncode}: {told[-1]}"
    return ""


def main() -> int:
    """Run what is there, a line each; returns whether something failed."""
    root = os.environ.get("PROJECTS")
    if not root:
        print("PROJECTS=folder make projects: a folder with clones, OWNER/NAME of each")
        return 2
    failed = 0
    for name, (commands, lifts) in projects(PAGE.read_text()).items():
        clone, begun = Path(root, name), time.perf_counter()
        if not clone.is_dir():
            print(f"{name}: not there", flush=True)
            continue
        wrong = run(clone, commands, lifts)
        failed += bool(wrong)
        print(f"{name}: {wrong or 'ok'} ({time.perf_counter() - begun:.0f} s)", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
