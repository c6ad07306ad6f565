"""The list of models and of published weights, which models/README.md has."""

from __future__ import annotations

import hashlib
from io import SEEK_END, BufferedReader, BytesIO
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError, nearest

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
        raise UserError(f"no model named {name!r}: {hint}")
    return FOLDER / name


def damage(file: BufferedReader | BytesIO, known: Published) -> str:
    """What is wrong with the content of a file of published weights; "" if it is whole."""
    if file.seek(0, SEEK_END) != known.size:
        return f"has another size than {known.file}: it is not that file"
    file.seek(0)
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
