"""Check the files of snapshots.

  osucaffe snapshot verify run_iter_100.solverstate     a snapshot: its state, and its model
  osucaffe snapshot verify *.solverstate *.caffemodel   or models alone; .h5 files, too

Each file is read completely and compared with the checksum that training wrote into it (files of
other programs have none); a state and its model must belong to the same snapshot. The exit code is
1 if any file is bad."""

from __future__ import annotations

import argparse

from ..verify import verify_all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand."""
    commands = parser.add_subparsers(dest="name", metavar="WHAT", required=True)
    verify = commands.add_parser("verify", help="read snapshots completely", allow_abbrev=False)
    verify.add_argument(
        "files", metavar="FILE", nargs="+", help=".solverstate and .caffemodel files, also .h5"
    )


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    verify_all(args.files, "files", _verify)


def _verify(file: str) -> None:
    from pathlib import Path

    from ...proto import read_weights
    from ...solvers.snapshots import snapshot

    path = Path(file)
    if path.name.removesuffix(".h5").endswith(".solverstate"):
        found = snapshot.read(path)
        what = f"iteration {found.state.iter:,}, its model {found.model}{_checked(found.model)}"
    else:
        count = sum(len(layer.blobs) > 0 for layer in read_weights(path).layer)
        what = f"weights of {count:,} layer{'s' * (count != 1)}"
    print(f"{file}: good{_checked(path)}: {what}")


def _checked(path: object) -> str:
    from ...proto import stated_checksum

    return "" if stated_checksum(str(path)) is not None else " as far as one can tell (no checksum)"
