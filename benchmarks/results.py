"""The files that benchmarks leave behind: JSON with what ran where, and a table from it."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def machine() -> dict[str, Any]:
    """The processor, the cores that this process may use, and the memory in GiB."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "memory_gib": round(memory, 1)}


def today() -> str:
    """The date in UTC, as 2026-11-30."""
    return datetime.now(UTC).date().isoformat()


def slug(device: str) -> str:
    """A device's name as the names of files have it."""
    return device.lower().replace(" ", "-")


def begin(**more: Any) -> dict[str, Any]:
    """A record: when and where it is measured, and what else is given."""
    return {"date": today(), "machine": machine(), **more}


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A benchmark's command line, with the folder of its results."""
    made = argparse.ArgumentParser(description=doc)
    made.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return made


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; the first column is text, the others are numbers or short text."""
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def earlier(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """What NAME.json holds, if there is one: a part of it may be measured again."""
    path = folder / f"{name}.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return record


def show(name: str, record: dict[str, Any], text: str, folder: Path) -> None:
    """Print what was measured, write it to files of this name and the record's date, and say so."""
    print(text)
    print(f"wrote {write(name + '-' + record['date'], record, text, folder)}")


def write(name: str, record: dict[str, Any], text: str, folder: Path = RESULTS) -> Path:
    """Write NAME.json and NAME.md; return the latter's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    path = folder / f"{name}.md"
    path.write_text(text)
    return path
