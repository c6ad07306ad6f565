"""`osucaffe models`: the model files that come with osucaffe, and published weights."""

from __future__ import annotations

from pathlib import Path

from ...api.tables import table
from ...cli.output import make_folder
from ...errors import UserError
from ...files import read_bytes, unreadable, write_bytes
from .catalogue import damage, find_model, models, published
from .options import Check, Copy, Get, Models
from .pretrained import get


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
        print(get(command.name))
    else:
        _print()


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
