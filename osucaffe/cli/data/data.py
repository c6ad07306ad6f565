"""Owns `osucaffe data`: databases of data sets or photographs are made, inspected and checked."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ...data.databases.database import convert_database, open_database, write_database
from ...data.sets import make_annotated as make
from ...data.sets import mnist
from ...data.sets.cifar import convert_cifar
from ...data.sets.mean import compute_mean
from ...data.sets.mnist import load, records
from ...data.sets.photo_set import LABELS, MEAN
from ...data.sets.survey import Survey, sample, survey
from ...errors import UserError, listed
from ...files import write_bytes
from ...proto import write_mean
from .. import options
from ..images import save_image
from ..output import progress, scaled, verify_all
from . import data_folder
from .contact_sheet import draw_contact_sheet

_BAR = 40
_LABELS = 30
_NAMED = 20


_CLASSES = {
    "cifar10": [
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ],
    "fashion_mnist": [
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ],
}


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    commands = {
        "mnist": _mnist, "cifar10": _set, "fashion_mnist": _set,
        "folder": data_folder.run, "annotated": _annotated, "convert": _convert,
        "inspect": _inspect, "verify": _verify,
    }  # fmt: skip
    commands[args.name](args)


def _mnist(args: argparse.Namespace) -> None:
    mnist.make(args.out, source=args.source, files=args.files)


def _set(args: argparse.Namespace) -> None:
    """Make the databases of CIFAR-10 or Fashion-MNIST, and what the nets of models/ want beside
    them: the names of labels, and CIFAR-10's mean."""
    folder = Path(args.out)
    counts = (_cifar10 if args.name == "cifar10" else _fashion_mnist)(args.files, folder)
    names = "".join(f"{name}\n" for name in _CLASSES[args.name])
    write_bytes(folder / LABELS, names.encode())
    for name, count in counts.items():
        print(f"{folder / name}: {count:,} images")


def _cifar10(files: str, folder: Path) -> dict[str, int]:
    with progress("Converting", 6) as advance:
        counts = convert_cifar(files, folder, advance=advance)
    database = open_database(folder / "cifar10_train_lmdb")
    write_mean(folder / MEAN, compute_mean(database))
    return counts


def _fashion_mnist(files: str, folder: Path) -> dict[str, int]:
    images = load("files", files)
    parts = {"fashion_mnist_test_lmdb": images.test, "fashion_mnist_train_lmdb": images.train}
    return {name: write_database(folder / name, records(part)) for name, part in parts.items()}


def _annotated(args: argparse.Namespace) -> None:
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
    database = open_database(args.input)
    with progress("Converting", len(database)) as advance:
        count = convert_database(database, args.output, advance=advance)
    print(f"{args.output}: {count:,} records")


def _inspect(args: argparse.Namespace) -> None:
    survey = _survey(args.input, args, "Inspecting")
    print(f"{args.input}: {survey.records:,} records, {scaled(survey.nbytes, 'B', 'KMGT')}")
    if survey.labels:  # else no record can be read
        print(f"  form    {_counts(survey.forms.items())}")
        shapes = ((" x ".join(map(str, shape)), n) for shape, n in survey.shapes.most_common())
        print(f"  shape   {_counts(shapes)}  (channels x height x width)")
        kinds = f"{len(survey.labels):,} different"
        print(f"  labels  {kinds}, {min(survey.labels)} to {max(survey.labels)}")
    if len(survey.labels) <= _LABELS:
        most = max(survey.labels.values(), default=1)
        for label, count in sorted(survey.labels.items()):
            print(f"  {label:>7} {count:>9,}  {'█' * round(_BAR * count / most)}")
    else:
        counts = sorted(survey.labels.values())
        print(
            f"          records of a label: {counts[0]:,} to {counts[-1]:,}, "
            f"median {counts[len(counts) // 2]:,}"
        )
    _print_bad(survey)
    if args.sheet:
        images = sample(open_database(args.input), args.samples)
        if not images:
            raise UserError(f"{args.input}: no sample can be read, so there is no {args.sheet}")
        drawn = "" if len(images) == survey.records else ", drawn at random"
        note = f"{len(images)} of {survey.records:,} records{drawn}, with their labels"
        save_image(draw_contact_sheet(images, str(args.input), note), args.sheet)
        print(f"  samples in {args.sheet}")


def _verify(args: argparse.Namespace) -> None:
    verify_all(args.input, "databases", lambda path: _verify_one(path, args))


def _verify_one(path: str, args: argparse.Namespace) -> None:
    survey = _survey(path, args, "Verifying", decode=True, classes=args.classes)
    _print_bad(survey)
    if survey.bad:
        raise UserError(f"{path}: {len(survey.bad):,} of {survey.records:,} records are bad")
    print(f"{path}: all {survey.records:,} records are good")
    if len(survey.shapes) > 1:
        print(f"  of {len(survey.shapes):,} sizes: a net needs transform_param's crop_size")


def _survey(
    path: str,
    args: argparse.Namespace,
    what: str,
    *,
    decode: bool = False,
    classes: int | None = None,
) -> Survey:
    database = open_database(path)
    with progress(what, len(database)) as advance:
        return survey(
            database,
            decode=decode,
            classes=classes,
            threads=options.readers(args),
            advance=advance,
        )


def _print_bad(survey: Survey) -> None:
    for key, reason in survey.bad[:_NAMED]:
        print(f'  bad record "{key}": {reason}')
    if len(survey.bad) > _NAMED:
        print(f"  and {len(survey.bad) - _NAMED:,} more")


def _counts(items: Iterable[tuple[str, int]]) -> str:
    """The kinds with their numbers; of one kind, its name alone."""
    pairs = list(items)
    if len(pairs) == 1:
        return pairs[0][0]
    return listed((f"{name} ({count:,})" for name, count in pairs), 5)
