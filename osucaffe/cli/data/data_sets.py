"""Owns `osucaffe data cifar10` and `data fashion_mnist`: the databases of these sets, the names of
their labels, and what the nets of models/ want beside them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_CLASSES = {
    "cifar10": [
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ],
    "fashion_mnist": [
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ],
}
_FILES = {
    "cifar10": "a folder to which its archive was unpacked, binary or Python version",
    "fashion_mnist": "a folder with its four files, which have the names of MNIST's, plain or .gz",
}


def add_commands(commands: Any) -> None:
    """Declare the subcommands and their options."""
    for name, what in _FILES.items():
        parser = commands.add_parser(name, help=f"make the databases of {name}", allow_abbrev=False)
        parser.add_argument("--files", metavar="DIR", required=True, help=what)
        parser.add_argument(
            "--out", metavar="DIR", default=f"data/{name}", help=f"where to (default: data/{name})"
        )


def run(args: argparse.Namespace) -> None:
    """Make the databases, and labels.txt beside them."""
    from ...data.sets.photo_set import LABELS
    from ...files import write_bytes

    folder = Path(args.out)
    counts = (_cifar10 if args.name == "cifar10" else _fashion_mnist)(args.files, folder)
    names = "".join(f"{each}\n" for each in _CLASSES[args.name])
    write_bytes(folder / LABELS, names.encode())
    for name, count in counts.items():
        print(f"{folder / name}: {count:,} images")


def _cifar10(files: str, folder: Path) -> dict[str, int]:
    from ...data.databases.database import open_database
    from ...data.sets.cifar import convert_cifar
    from ...data.sets.mean import compute_mean
    from ...data.sets.photo_set import MEAN
    from ...proto import write_mean
    from ..progress import progress

    with progress("Converting", 6) as advance:
        counts = convert_cifar(files, folder, advance=advance)
    database = open_database(folder / "cifar10_train_lmdb")
    write_mean(folder / MEAN, compute_mean(database))
    return counts


def _fashion_mnist(files: str, folder: Path) -> dict[str, int]:
    from ...data.databases.database import write_database
    from ...data.sets.mnist import load, records

    images = load("files", files)
    parts = {"fashion_mnist_test_lmdb": images.test, "fashion_mnist_train_lmdb": images.train}
    return {name: write_database(folder / name, records(part)) for name, part in parts.items()}
