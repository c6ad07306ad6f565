"""`osucaffe data`: databases of data sets or photographs are made, inspected and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ... import plugins
from ...api.tables import scaled
from ...backends.cores import usable_cores
from ...data.databases.database import convert_database, open_database, write_database
from ...data.sets import mnist
from ...data.sets.cifar import convert_cifar
from ...data.sets.mean import compute_mean
from ...data.sets.mnist import load, records
from ...data.sets.photo_set import LABELS, MEAN
from ...data.sets.survey import Survey, sample, survey
from ...errors import UserError, listed
from ...files import write_bytes
from ...proto import write_mean
from ..images import save_image
from ..output import progress, verify_all
from .contact_sheet import draw_contact_sheet
from .options import (
    Annotated,
    Cifar10,
    Convert,
    Data,
    FashionMnist,
    Inspect,
    Mnist,
    Verify,
)  # fmt: skip

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


def run(options: Data) -> None:
    """Run the subcommand."""
    commands: dict[type, Callable[[Any], None]] = {
        Mnist: _mnist, Cifar10: _cifar10, FashionMnist: _fashion_mnist,
        Annotated: _annotated, Convert: _convert,
        Inspect: _inspect, Verify: _verify,
    }  # fmt: skip
    kind = type(options.command)
    run = commands.get(kind) or plugins.runner(options.command, kind.__name__.lower())
    run(options.command)


def _mnist(options: Mnist) -> None:
    mnist.make(options.out, source=options.source, files=options.files)


def _cifar10(options: Cifar10) -> None:
    """The databases of CIFAR-10, and its mean, for the nets of models/."""
    with progress("Converting", 6) as advance:
        counts = convert_cifar(options.files, options.out, advance=advance)
    database = open_database(Path(options.out) / "cifar10_train_lmdb")
    write_mean(Path(options.out) / MEAN, compute_mean(database))
    _finish("cifar10", options.out, counts)


def _fashion_mnist(options: FashionMnist) -> None:
    images, out = load("files", options.files), Path(options.out)
    parts = {"fashion_mnist_test_lmdb": images.test, "fashion_mnist_train_lmdb": images.train}
    counts = {name: write_database(out / name, records(part)) for name, part in parts.items()}
    _finish("fashion_mnist", options.out, counts)


def _finish(name: str, folder: str, counts: dict[str, int]) -> None:
    """Write the names of a set's labels, and say what its databases have."""
    names = "".join(f"{each}\n" for each in _CLASSES[name])
    write_bytes(Path(folder) / LABELS, names.encode())
    for database, count in counts.items():
        print(f"{Path(folder) / database}: {count:,} images")


def _annotated(options: Annotated) -> None:
    plugins.need(plugins.ACTIONS, "annotated")(options)


def _convert(options: Convert) -> None:
    database = open_database(options.input)
    with progress("Converting", len(database)) as advance:
        count = convert_database(database, options.output, advance=advance)
    print(f"{options.output}: {count:,} records")


def _inspect(options: Inspect) -> None:
    survey = _survey(options.input, options, "Inspecting")
    print(f"{options.input}: {survey.records:,} records, {scaled(survey.nbytes, 'B', 'KMGT')}")
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
    if options.sheet:
        images = sample(open_database(options.input), options.samples)
        if not images:
            raise UserError(
                f"{options.input}: no sample can be read, so there is no {options.sheet}"
            )
        drawn = "" if len(images) == survey.records else ", drawn at random"
        note = f"{len(images)} of {survey.records:,} records{drawn}, with their labels"
        save_image(draw_contact_sheet(images, str(options.input), note), options.sheet)
        print(f"  samples in {options.sheet}")


def _verify(options: Verify) -> None:
    verify_all(options.input, "databases", lambda path: _verify_one(path, options))


def _verify_one(path: str, options: Verify) -> None:
    survey = _survey(path, options, "Verifying", decode=True, classes=options.classes)
    _print_bad(survey)
    if survey.bad:
        raise UserError(f"{path}: {len(survey.bad):,} of {survey.records:,} records are bad")
    print(f"{path}: all {survey.records:,} records are good")
    if len(survey.shapes) > 1:
        print(f"  of {len(survey.shapes):,} sizes: a net needs transform_param's crop_size")


def _survey(
    path: str,
    options: Inspect | Verify,
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
            threads=options.readers or usable_cores(),
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
