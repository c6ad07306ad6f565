"""`osucaffe data folder`: databases, and what goes with them, of class folders."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ... import log
from ...api.tables import table
from ...backends.cores import usable_cores
from ...cli import loading
from ...cli.data.contact_sheet import draw_contact_sheet
from ...cli.images import save_image
from ...cli.output import make_folder, progress, short
from ...data.ahead.parallel_map import BadRecords
from ...data.databases.database import open_database
from ...data.sets.convert import convert_images
from ...data.sets.folder import find_photos, read_photo
from ...data.sets.mean import compute_mean
from ...data.sets.photo_set import LABELS, MEAN, PhotoSettings
from ...data.sets.survey import sample
from ...data.streams.image_list import Entry
from ...errors import UserError, listed
from ...files import write_bytes
from ...proto import write_mean
from .copies import find_copies
from .options import Folder
from .split import balance, split

_log = logging.getLogger("osucaffe")
_TITLES = {"train": "training", "val": "validation", "test": "test"}
_FEW = 20
"""Photographs of a class for validation below which the share that is right means little."""
_IMBALANCE = 5
"""How many times as many photographs as the smallest class the largest may have untold."""
_SAMPLES = 60
_LONGEST = 15
"""Letters of a class's name below a picture of the contact sheet."""


def run(options: Folder) -> None:
    """Make the databases, the lists, the names of the labels, the mean and the contact sheet."""
    log.start()
    parts, classes = find_photos(options.photos)
    out = Path(options.out)
    if out.resolve().is_relative_to(Path(options.photos).resolve()):
        raise UserError(f"--out {out}: is inside {options.photos}, whose folders are classes")
    parts = _split(parts, options)
    if options.balance:
        parts["train"] = balance(parts["train"])
    make_folder(out)
    bad = loading.bad_records(options.skip_bad)
    settings = PhotoSettings(options.size, options.fit, options.encode_type.lower())
    written = []
    for name, part in parts.items():
        written.append(_convert(part, out / f"{name}_lmdb", settings, options, bad))
        lines = "".join(f"{entry.name} {entry.label}\n" for entry in written[-1])
        write_bytes(out / f"{name}.txt", lines.encode(errors="surrogateescape"))
    names = "".join(f"{name}\n" for name in classes)
    write_bytes(out / LABELS, names.encode(errors="surrogateescape"))
    settings.write(out)
    _describe(out, options, classes)
    _print_counts(classes, dict(zip(parts, written, strict=True)))
    skipped = f" ({bad.count:,} bad ones skipped)" if bad.count else ""
    labels = [entry.label for part in written for entry in part]
    print(f"{options.out}: {len(labels):,} images of {len(set(labels))} classes{skipped}")


def _split(parts: Mapping[str, list[Entry]], options: Folder) -> dict[str, list[Entry]]:
    """The photographs by part: those of the folder's own split, or split here; copies of one
    picture are told, and kept together where that is for us to decide."""
    entries = [entry for part in parts.values() for entry in part]
    paths = [f"{options.photos}/{entry.name}" for entry in entries]
    with progress("Looking for copies", len(paths)) as advance:
        first_copies = find_copies(paths, options.readers or usable_cores(), advance)
    picture = {entry.name: first for entry, first in zip(entries, first_copies, strict=True)}
    copies = [(entries[at], entries[first]) for at, first in enumerate(first_copies) if at != first]
    if copies:
        _log.warning(
            "%s: %s of %s photographs are copies of others: %s of %s, for one",
            *(options.photos, f"{len(copies):,}", f"{len(entries):,}"),
            *(entry.name for entry in copies[0]),
        )
    for copy, first in copies:
        if copy.label != first.label:
            _log.warning(
                "%s: one picture is in two classes: %s, %s", options.photos, copy.name, first.name
            )
            break
    found = dict(parts)
    if "val" not in parts:
        own = first_copies[: len(parts["train"])]
        train, val = split(parts["train"], options.val_share, own)
        found = {"train": train, "val": val} | {n: p for n, p in parts.items() if n != "train"}
    trained = {picture[entry.name] for entry in found["train"]}
    for name, part in found.items():
        leaks = sum(picture[entry.name] in trained for entry in part)
        if leaks and name != "train":
            _log.warning(
                "%s: %s of the %s photographs for %s have copies among those for training: "
                "accuracy will look too good; remove one of each",
                *(options.photos, f"{leaks:,}", f"{len(part):,}", _TITLES[name]),
            )
    return found


def _convert(
    entries: Sequence[Entry],
    output: Path,
    settings: PhotoSettings,
    options: Folder,
    bad: BadRecords,
) -> list[Entry]:
    with progress("Converting", len(entries)) as advance:
        return convert_images(
            entries,
            options.photos.rstrip("/") + "/",
            output,
            read=partial(read_photo, size=settings.size, fit=settings.fit),
            encoding=settings.encoding or None,
            threads=options.readers or usable_cores(),
            bad=bad,
            advance=advance,
        )


def _describe(out: Path, options: Folder, classes: list[str]) -> None:
    """Write the mean of the training images, and a picture of some with their classes."""
    database = open_database(out / "train_lmdb")
    write_mean(out / MEAN, compute_mean(database, threads=options.readers or usable_cores()))
    images = [
        (image, short(classes[label], _LONGEST)) for image, label in sample(database, _SAMPLES)
    ]
    note = f"{len(images)} of {len(database):,} images for training, with their classes"
    save_image(draw_contact_sheet(images, options.photos, note), out / "sheet.png")


def _print_counts(classes: list[str], parts: Mapping[str, Sequence[Entry]]) -> None:
    counts = {part: Counter(entry.label for entry in entries) for part, entries in parts.items()}
    rows = [("class", "label", *(_TITLES[part] for part in counts), "")]
    few = []
    for label, name in enumerate(classes):
        lacking = (
            "" if all(part[label] for part in counts.values()) else "add images: a part has none"
        )
        few += [name] if 0 < counts["val"][label] < _FEW else []
        rows.append((name, str(label), *(f"{part[label]:,}" for part in counts.values()), lacking))
    print(*table("<>>>>"[: len(rows[0]) - 1] + "<", *rows), sep="\n")
    if few:
        _log.warning(
            "Fewer than %d photographs for validation of %s: their accuracy is a rough figure",
            *(_FEW, listed(few, 6)),
        )
    most, least = (pick(counts["train"].values(), default=0) for pick in (max, min))
    if most > _IMBALANCE * least > 0:
        _log.warning(
            "The largest class has %s photographs for training, the smallest %s: rare classes are "
            "recognized less well; see recall by class in the report, and add photographs",
            *(f"{most:,}", f"{least:,}"),
        )
