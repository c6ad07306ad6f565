"""Owns `osucaffe data folder`: databases, and what goes with them, of class folders."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ... import log
from ...data.ahead.parallel_map import BadRecords
from ...data.databases.database import open_database
from ...data.sets.convert import convert_images
from ...data.sets.folder import find_photos, read_photo, split
from ...data.sets.mean import compute_mean
from ...data.sets.photo_set import LABELS, MEAN, PhotoSettings
from ...data.sets.survey import sample
from ...data.streams.image_list import Entry
from ...errors import UserError
from ...files import write_bytes
from ...proto import write_mean
from .. import options
from ..images import save_image
from ..output import make_folder, progress, short, table
from .contact_sheet import draw_contact_sheet

_SAMPLES = 60
_LONGEST = 15
"""Letters of a class's name below a picture of the contact sheet."""


def run(args: argparse.Namespace) -> None:
    """Make the databases, the lists, the names of the labels, the mean and the contact sheet."""
    log.start()
    entries, classes = find_photos(args.photos)
    parts = split(entries, args.val_share)
    out = Path(args.out)
    if out.resolve().is_relative_to(Path(args.photos).resolve()):
        raise UserError(f"--out {out}: is inside {args.photos}, whose folders are classes")
    make_folder(out)
    bad = options.bad_records(args)
    settings = PhotoSettings(args.size, args.fit, args.encode_type.lower())
    written = []
    for name, part in zip(("train", "val"), parts, strict=True):
        written.append(_convert(part, out / f"{name}_lmdb", settings, args, bad))
        lines = "".join(f"{entry.name} {entry.label}\n" for entry in written[-1])
        write_bytes(out / f"{name}.txt", lines.encode(errors="surrogateescape"))
    names = "".join(f"{name}\n" for name in classes)
    write_bytes(out / LABELS, names.encode(errors="surrogateescape"))
    settings.write(out)
    _describe(out, args, classes)
    _print_counts(classes, written)
    skipped = f" ({bad.count:,} bad ones skipped)" if bad.count else ""
    labels = [entry.label for part in written for entry in part]
    print(f"{args.out}: {len(labels):,} images of {len(set(labels))} classes{skipped}")


def _convert(
    entries: Sequence[Entry],
    output: Path,
    settings: PhotoSettings,
    args: argparse.Namespace,
    bad: BadRecords,
) -> list[Entry]:
    with progress("Converting", len(entries)) as advance:
        return convert_images(
            entries,
            args.photos.rstrip("/") + "/",
            output,
            read=partial(read_photo, size=settings.size, fit=settings.fit),
            encoding=settings.encoding or None,
            threads=options.readers(args),
            bad=bad,
            advance=advance,
        )


def _describe(out: Path, args: argparse.Namespace, classes: list[str]) -> None:
    """Write the mean of the training images, and a picture of some with their classes."""
    database = open_database(out / "train_lmdb")
    write_mean(out / MEAN, compute_mean(database, threads=options.readers(args)))
    images = [
        (image, short(classes[label], _LONGEST)) for image, label in sample(database, _SAMPLES)
    ]
    note = f"{len(images)} of {len(database):,} images for training, with their classes"
    save_image(draw_contact_sheet(images, args.photos, note), out / "sheet.png")


def _print_counts(classes: list[str], parts: Sequence[Sequence[Entry]]) -> None:
    train, val = (Counter(entry.label for entry in part) for part in parts)
    rows = [("class", "label", "training", "validation", "")]
    for label, name in enumerate(classes):
        few = "" if train[label] and val[label] else "both need some: add images"
        rows.append((name, str(label), f"{train[label]:,}", f"{val[label]:,}", few))
    print(*table("<>>><", *rows), sep="\n")
