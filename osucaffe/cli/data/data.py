"""Make databases of data sets or photographs; inspect and check a database.

  osucaffe data mnist                   mnist_train_lmdb and mnist_test_lmdb in data/mnist
  osucaffe data mnist --files FOLDER    from MNIST's four files, plain or .gz
  osucaffe data cifar10 --files FOLDER  cifar10_{train,test}_lmdb and their mean in data/cifar10
  osucaffe data fashion_mnist --files FOLDER
                                        fashion_mnist_{train,test}_lmdb in data/fashion_mnist
  osucaffe data folder PHOTOS --out DIR
                                        from a folder of photographs for each class: LMDBs for
                                        training and validation, label names, mean, contact sheet
  osucaffe data annotated LMDB --voc FOLDER --split trainval
  osucaffe data annotated LMDB --coco FILE.json --images FOLDER
                                        images with boxes, for SSD; and LMDB.labelmap.prototxt
  osucaffe data convert LEVELDB LMDB    convert a LevelDB to an LMDB
  osucaffe data inspect LMDB            tell what it holds; --sheet FILE.png: draw some records
  osucaffe data verify LMDB ...         decode all records, and name the bad ones

Without --files, MNIST is downloaded from its public mirrors (and its checksums are verified); if
that fails, a subset of 10,000 + 2,000 digits that comes with osucaffe is used."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...errors import UserError, listed
from .. import options
from ..verify import verify_all
from . import data_folder, data_sets

if TYPE_CHECKING:
    from ...data.sets.survey import Survey

_BAR = 40
_LABELS = 30
_NAMED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="name", metavar="WHAT", required=True)
    mnist = commands.add_parser("mnist", help="make the databases of MNIST", allow_abbrev=False)
    mnist.add_argument(
        "--out",
        metavar="DIR",
        default="data/mnist",
        help="the folder to write to (default: data/mnist)",
    )
    mnist.add_argument("--files", metavar="DIR", help="the folder of MNIST's files")
    mnist.add_argument(
        "--source",
        choices=("auto", "files", "download", "packaged"),
        default="auto",
        help="where to take MNIST from (default: auto, the first that is available)",
    )
    data_sets.add_commands(commands)
    data_folder.add_command(commands)
    annotated = commands.add_parser(
        "annotated", help="make a database of images with boxes", allow_abbrev=False
    )
    annotated.add_argument("output", metavar="LMDB", help="the database to write")
    annotated.add_argument(
        "--voc", metavar="DIR", action="append", help="a PASCAL VOC folder (may be repeated)"
    )
    annotated.add_argument("--split", default="trainval", help="VOC's split (default: trainval)")
    annotated.add_argument("--coco", metavar="FILE", help="a COCO annotation file")
    annotated.add_argument("--images", metavar="DIR", help="the folder of COCO's images")
    annotated.add_argument(
        "--labels", metavar="FILE", help="a label map for VOC (default: VOC's 20 classes)"
    )
    convert = commands.add_parser(
        "convert", help="convert a LevelDB to an LMDB", allow_abbrev=False
    )
    convert.add_argument("input", metavar="LEVELDB", help="the database to read, LevelDB or LMDB")
    convert.add_argument("output", metavar="LMDB", help="the LMDB to write")
    inspect = commands.add_parser("inspect", help="tell what an LMDB holds", allow_abbrev=False)
    inspect.add_argument("input", metavar="LMDB", help="the database")
    inspect.add_argument(
        "--sheet", metavar="FILE", help="write a picture of some records (.png or .jpg)"
    )
    inspect.add_argument(
        "--samples",
        metavar="N",
        type=options.positive,
        default=60,
        help="how many records to show (default: 60)",
    )
    verify = commands.add_parser(
        "verify", help="decode every record of LMDBs, and name the bad ones", allow_abbrev=False
    )
    verify.add_argument("input", metavar="LMDB", nargs="+", help="the databases")
    verify.add_argument(
        "--classes", metavar="N", type=options.positive, help="check that labels are 0 to N-1"
    )
    for command in (annotated, inspect, verify):
        options.add_readers(command)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    commands = {
        "mnist": _mnist, "cifar10": data_sets.run, "fashion_mnist": data_sets.run,
        "folder": data_folder.run, "annotated": _annotated, "convert": _convert,
        "inspect": _inspect, "verify": _verify,
    }  # fmt: skip
    commands[args.name](args)


def _mnist(args: argparse.Namespace) -> None:
    from ...data.sets import mnist

    mnist.make(args.out, source=args.source, files=args.files)


def _annotated(args: argparse.Namespace) -> None:
    from pathlib import Path

    from ...data.sets import make_annotated as make
    from ..progress import progress

    if bool(args.voc) == bool(args.coco) or bool(args.coco) != bool(args.images):
        raise UserError("give --voc DIR, or --coco FILE and --images DIR")
    if args.coco:
        entries, labels = make.read_coco(Path(args.images), Path(args.coco))
    else:
        labels = [(name, number) for number, name in enumerate(make.VOC_CLASSES, 1)]
        labels = make.read_label_map(args.labels) if args.labels else labels
        entries = [
            entry for folder in args.voc
            for entry in make.read_voc(Path(folder), args.split, dict(labels))
        ]  # fmt: skip
    with progress("Writing", len(entries)) as advance:
        count = make.make_database(
            entries, args.output, threads=options.readers(args), advance=advance
        )
    names = f"{args.output.rstrip('/')}.labelmap.prototxt"
    make.write_label_map(names, labels)
    print(f"{args.output}: {count:,} images; {names}: {len(labels)} labels")


def _convert(args: argparse.Namespace) -> None:
    from ...data.databases.database import convert_database, open_database
    from ..progress import progress

    database = open_database(args.input)
    with progress("Converting", len(database)) as advance:
        count = convert_database(database, args.output, advance=advance)
    print(f"{args.output}: {count:,} records")


def _inspect(args: argparse.Namespace) -> None:
    from ...data.databases.database import open_database
    from ...data.sets.survey import sample

    found = _survey(args.input, args, "Inspecting")
    print(f"{args.input}: {found.records:,} records, {_size(found.nbytes)}")
    if found.labels:  # else no record can be read
        print(f"  form    {_counts(found.forms.items())}")
        shapes = ((" x ".join(map(str, shape)), n) for shape, n in found.shapes.most_common())
        print(f"  shape   {_counts(shapes)}  (channels x height x width)")
        kinds = f"{len(found.labels):,} different"
        print(f"  labels  {kinds}, {min(found.labels)} to {max(found.labels)}")
    if len(found.labels) <= _LABELS:
        most = max(found.labels.values(), default=1)
        for label, count in sorted(found.labels.items()):
            print(f"  {label:>7} {count:>9,}  {'█' * round(_BAR * count / most)}")
    else:
        counts = sorted(found.labels.values())
        print(
            f"          records of a label: {counts[0]:,} to {counts[-1]:,}, "
            f"median {counts[len(counts) // 2]:,}"
        )
    _print_bad(found)
    if args.sheet:
        from .contact_sheet import write_contact_sheet

        images = sample(open_database(args.input), args.samples)
        if not images:
            raise UserError(f"{args.input}: no sample can be read, so there is no {args.sheet}")
        drawn = "" if len(images) == found.records else ", drawn at random"
        note = f"{len(images)} of {found.records:,} records{drawn}, with their labels"
        write_contact_sheet(args.sheet, images, str(args.input), note)
        print(f"  samples in {args.sheet}")


def _verify(args: argparse.Namespace) -> None:
    verify_all(args.input, "databases", lambda path: _verify_one(path, args))


def _verify_one(path: str, args: argparse.Namespace) -> None:
    found = _survey(path, args, "Verifying", decode=True, classes=args.classes)
    _print_bad(found)
    if found.bad:
        raise UserError(f"{path}: {len(found.bad):,} of {found.records:,} records are bad")
    print(f"{path}: all {found.records:,} records are good")
    if len(found.shapes) > 1:
        print(f"  of {len(found.shapes):,} sizes: a net needs transform_param's crop_size")


def _survey(
    path: str,
    args: argparse.Namespace,
    what: str,
    *,
    decode: bool = False,
    classes: int | None = None,
) -> Survey:
    from ...data.databases.database import open_database
    from ...data.sets.survey import survey
    from ..progress import progress

    database = open_database(path)
    with progress(what, len(database)) as advance:
        return survey(
            database,
            decode=decode,
            classes=classes,
            threads=options.readers(args),
            advance=advance,
        )


def _print_bad(found: Survey) -> None:
    for key, reason in found.bad[:_NAMED]:
        print(f'  bad record "{key}": {reason}')
    if len(found.bad) > _NAMED:
        print(f"  and {len(found.bad) - _NAMED:,} more")


def _counts(items: Iterable[tuple[str, int]]) -> str:
    """The kinds with their numbers; of one kind, its name alone."""
    pairs = list(items)
    if len(pairs) == 1:
        return pairs[0][0]
    return listed((f"{name} ({count:,})" for name, count in pairs), 5)


def _size(nbytes: int) -> str:
    size, units = float(nbytes), ["B", "KB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.3g} {units[0]}"
