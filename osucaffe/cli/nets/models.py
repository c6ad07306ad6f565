"""List the model files that come with osucaffe, and copy them.

osucaffe models                       list the models, and published weights
osucaffe models copy lenet            copy its nets, solver and page to models/lenet
osucaffe models copy lenet DIR        copy to another folder, with paths adapted
osucaffe models check FILE            whether weights are a published file, and undamaged"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError, nearest

FOLDER = Path(__file__).parents[2] / "models"
"""The folder of each model; README.md there has the tables that are printed."""


class Model(NamedTuple):
    """A line of the list. parameters: as a number with commas."""

    name: str
    what: str
    source: str
    parameters: str


class Published(NamedTuple):
    """Weights that someone published. sha1, sha256: "" where it is not known."""

    file: str
    model: str
    size: int
    sha1: str
    sha256: str
    place: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="action", metavar="WHAT")
    copy = commands.add_parser("copy", help="copy a model's files", allow_abbrev=False)
    copy.add_argument("name", metavar="MODEL", help="the model, by its name in the list")
    copy.add_argument(
        "folder", metavar="DIR", nargs="?", help="the folder to copy to (default: models/MODEL)"
    )
    check = commands.add_parser(
        "check", help="tell which published file a .caffemodel is", allow_abbrev=False
    )
    check.add_argument("file", metavar="FILE", help="a .caffemodel")


def run(args: argparse.Namespace) -> None:
    """Run the subcommand, or print the list."""
    if args.action == "copy":
        folder = Path(args.folder or f"models/{args.name}")
        for path in copy_model(args.name, folder):
            print(path)
    elif args.action == "check":
        print(_check(args.file))
    else:
        _print()


def models() -> dict[str, Model]:
    """The models by name, in the list's order."""
    return {row[0]: Model(*row) for row in _table("model")}


def published() -> list[Published]:
    """The weights that are known."""
    rows = _table("file")
    return [Published(row[0], row[1], int(row[2].replace(",", "")), *row[3:]) for row in rows]


def find_model(name: str) -> Path:
    """The folder of a model. UserError where there is none of this name."""
    known = models()
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
        raise UserError(f"there is no model {name!r}: {hint}")
    return FOLDER / name


def copy_model(name: str, folder: Path) -> list[Path]:
    """Copy a model's files to a folder; texts that name their place name the new one."""
    from ...files import read_bytes, write_bytes

    files = [path for path in sorted(find_model(name).iterdir()) if _comes_along(path)]
    targets = [folder / path.name for path in files]
    if stands := [path for path in targets if path.exists()]:
        raise UserError(f"{stands[0]}: already exists: give another folder, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot make this folder: {error.strerror}") from None
    for path, target in zip(files, targets, strict=True):
        text = read_bytes(path).replace(f"models/{name}/".encode(), f"{folder}/".encode())
        write_bytes(target, text)
    return targets


def _comes_along(path: Path) -> bool:
    return path.suffix in (".prototxt", ".md", ".py")


def _print() -> None:
    known = models().values()
    widths = [max(len(each[i]) for each in known) for i in range(2)]
    for each in known:
        name, what = (text.ljust(width) for text, width in zip(each, widths, strict=False))
        print(f"{name}  {what}  {each.parameters:>11}  {each.source}")
    print("\npublished weights (not in osucaffe; `osucaffe models check FILE` looks at a file):")
    for file in published():
        print(f"{file.model.ljust(widths[0])}  {file.file}, {file.size:,} bytes, {file.place}")


def _check(path: str) -> str:
    """What there is to say of a file of weights. UserError for one that is none of those known,
    and for one that is cut short or damaged."""
    import hashlib

    from ...files import unreadable

    try:
        size = Path(path).stat().st_size
        known = [each for each in published() if each.size == size]
        named = [each for each in published() if each.file == Path(path).name]
        if not known:
            wanted = f"; {named[0].file} has {named[0].size:,}" if named else ""
            raise UserError(f"{path}: {size:,} bytes: no published file that is known{wanted}")
        (one,) = known
        method = "sha256" if one.sha256 else "sha1"
        with Path(path).open("rb") as file:
            found = hashlib.file_digest(file, method).hexdigest()
    except OSError as error:
        raise unreadable(path, error) from None
    if found != getattr(one, method):
        raise UserError(
            f"{path}: has the size of {one.file}, but another checksum ({method} {found}): it is "
            "damaged, or not that file"
        )
    net = f"its net: osucaffe models copy {one.model}"
    return f"{path}: {one.file}, whole ({method} {found}); {net}"


def _table(first: str) -> list[list[str]]:
    """The rows of the table of README.md whose first column has this name."""
    rows: list[list[str]] = []
    inside = False
    for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [_plain(cell) for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif inside and not cells[0].startswith("---"):
            rows.append(cells)
        elif cells[0] == first:
            inside = True
    return rows


def _plain(cell: str) -> str:
    """A cell without its link."""
    text = cell.strip()
    return text[1 : text.index("]")] if text.startswith("[") else text
