"""Owns `osucaffe data folder`: databases, and what goes with them, of class folders."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from .. import options

if TYPE_CHECKING:
    from ...data.ahead.parallel_map import BadRecords
    from ...data.sets.photo_set import PhotoSettings
    from ...data.streams.image_list import Entry

_SAMPLES = 60
_LONGEST = 15
"""Letters of a class's name below a picture of the contact sheet."""


def _share(text: str) -> float:
    if not 0 < (share := float(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and below 1, not {text}")
    return share


_share.__name__ = "share"  # argparse names it in its messages


def add_command(commands: Any) -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "folder", help="make databases of photographs, a folder for each class", allow_abbrev=False
    )
    add = parser.add_argument
    add("photos", metavar="PHOTOS", help="a folder that holds one folder of images per class")
    add("--out", metavar="DIR", required=True, help="the folder to write to")
    add(
        "--val_share",
        metavar="X",
        type=_share,
        default=0.2,
        help="the share held out for validation (default: 0.2)",
    )
    add(
        "--size",
        metavar="N",
        type=options.positive,
        default=256,
        help="width and height of the stored images (default: 256)",
    )
    add(
        "--fit",
        choices=("crop", "squash"),
        default="crop",
        help="how to make images square: keep the middle (crop, the default) or distort (squash)",
    )
    add("--encode_type", metavar="TYPE", default="", help="compress the records: jpg or png")
    options.add_reading(parser)


def run(args: argparse.Namespace) -> None:
    """Make the databases, the lists, the names of the labels, the mean and the contact sheet."""
    from ... import log
    from ...data.sets.folder import find_photos, split
    from ...data.sets.photo_set import LABELS, PhotoSettings
    from ...files import write_bytes
    from .photo_input import SUFFIXES

    log.start()
    entries, classes = find_photos(args.photos, SUFFIXES)
    parts = split(entries, args.val_share)
    out = Path(args.out)
    if out.resolve().is_relative_to(Path(args.photos).resolve()):
        raise UserError(f"--out {out}: lies in {args.photos}, whose folders are classes")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot make this folder: {error.strerror}") from None
    bad = options.bad_records(args)
    settings = PhotoSettings(args.size, args.fit, args.encode_type.lower())
    written = []
    for name, part in zip(("train", "val"), parts, strict=True):
        written.append(_convert(part, out / f"{name}_lmdb", settings, args, bad))
        lines = "".join(f"{each.name} {each.label}\n" for each in written[-1])
        write_bytes(out / f"{name}.txt", lines.encode(errors="surrogateescape"))
    names = "".join(f"{name}\n" for name in classes)
    write_bytes(out / LABELS, names.encode(errors="surrogateescape"))
    settings.write(out)
    _describe(out, args, classes)
    _print_counts(classes, written)
    skipped = f" ({bad.count:,} bad ones skipped)" if bad.count else ""
    labels = [each.label for part in written for each in part]
    print(f"{args.out}: {len(labels):,} images of {len(set(labels))} classes{skipped}")


def _convert(
    entries: Sequence[Entry],
    output: Path,
    settings: PhotoSettings,
    args: argparse.Namespace,
    bad: BadRecords,
) -> list[Entry]:
    from ...data.sets.convert import convert_images
    from ...data.sets.folder import read_photo
    from ..progress import progress

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
    from ...data.databases.database import open_database
    from ...data.sets.mean import compute_mean
    from ...data.sets.photo_set import MEAN
    from ...data.sets.survey import sample
    from ...proto import write_mean
    from .contact_sheet import write_contact_sheet

    database = open_database(out / "train_lmdb")
    write_mean(out / MEAN, compute_mean(database, threads=options.readers(args)))
    short = [name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in classes]
    images = [(image, short[label]) for image, label in sample(database, _SAMPLES)]
    note = f"{len(images)} of {len(database):,} images for training, with their classes"
    write_contact_sheet(str(out / "sheet.png"), images, args.photos, note)


def _print_counts(classes: list[str], parts: Sequence[Sequence[Entry]]) -> None:
    train, val = (Counter(each.label for each in part) for part in parts)
    width = max(5, *map(len, classes))
    print(f"{'class':<{width}}  label  training  validation")
    for label, name in enumerate(classes):
        few = "" if train[label] and val[label] else "  both need some: add images"
        print(f"{name:<{width}}  {label:>5}  {train[label]:>8,}  {val[label]:>10,}{few}")
