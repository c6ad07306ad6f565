"""What lies next to a model's net: its weights, and the names of its classes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from ..data.sets.photo_set import LABELS, read_labels
from ..errors import UserError, listed
from ..proto import read_solver
from ..solvers.snapshots.snapshot import best_model
from ..solvers.snapshots.snapshot import listed as listed_snapshots

_log = logging.getLogger("osucaffe")


def class_names(sources: Sequence[str | Path], count: int, file: str | None = None) -> list[str]:
    """The names of the classes: from this file, or the labels.txt next to one of the sources if
    they fit; else numbers. UserError if the file has another number of names."""
    numbers = [f"class {number}" for number in range(count)]
    beside = (Path(source).parent / LABELS for source in sources)
    path = Path(file) if file else next(filter(Path.is_file, beside), None)
    if path is None:
        return numbers
    names = read_labels(path)
    if file and len(names) != count:
        raise UserError(f"{path}: has {len(names)} labels for {count} classes of the net")
    if file:
        return names
    if len(names) == count:
        _log.info("Names of classes: %s", path)
        return names
    _log.warning("%s: ignored: %d names for %d classes", path, len(names), count)
    return numbers


def newest_model(prefix: str) -> list[str]:
    """The best model with a prefix of snapshots if one was saved, or else the newest snapshot's, or
    else that with which `new finetune --head` lets training begin."""
    saved = [path for path in best_models(prefix) if Path(path).is_file()]
    begun = f"{prefix}_iter_0.caffemodel"
    made = [
        path
        for path in (begun, *(each.model for each in listed_snapshots(prefix)))
        if Path(path).is_file()
    ]
    return saved[:1] or made[-1:]


def best_models(prefix: str) -> list[str]:
    """The files that a best model may have."""
    return [best_model(prefix, end) for end in ("", ".h5")]


def find_files(folder: Path) -> tuple[Path, str]:
    """A folder's deploy.prototxt, and its weights: those of its solver's run, or the only ones that
    there are. UserError."""
    net, solver = folder / "deploy.prototxt", folder / "solver.prototxt"
    if not net.is_file():
        raise UserError(f"{folder}: has no deploy.prototxt: give a net and its weights, or a run")
    if solver.is_file():
        given = read_solver(solver).snapshot_prefix
        for prefix in (given, str(folder / Path(given).name)):  # it may have been moved
            if found := newest_model(prefix):
                return net, found[0]
    there = sorted(map(str, [*folder.glob("*.caffemodel"), *folder.glob("*.caffemodel.h5")]))
    if len(there) != 1:
        raise UserError(
            f"{folder}: has {listed(there) or 'no weights'}: give the net and its weights, as "
            'oc.load("deploy.prototxt", "x.caffemodel")'
        )
    return net, there[0]
