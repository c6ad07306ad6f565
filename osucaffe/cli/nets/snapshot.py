"""`osucaffe snapshot`: the files of snapshots are checked."""

from __future__ import annotations

from pathlib import Path

from ...proto import read_weights, stated_checksum
from ...solvers.snapshots import snapshot
from ..output import verify_all
from .options import Snapshot


def run(options: Snapshot) -> None:
    """Run the subcommand."""
    verify_all(options.command.files, "files", _verify)


def _verify(file: str) -> None:
    path = Path(file)
    if path.name.removesuffix(".h5").endswith(".solverstate"):
        entry = snapshot.read(path)
        what = f"iteration {entry.state.iter:,}, its model {entry.model}{_checked(entry.model)}"
    else:
        count = sum(len(layer.blobs) > 0 for layer in read_weights(path).layer)
        what = f"weights of {count:,} layer{'s' * (count != 1)}"
    print(f"{file}: good{_checked(path)}: {what}")


def _checked(path: object) -> str:
    return "" if stated_checksum(str(path)) is not None else " as far as one can tell (no checksum)"
