"""Owns the options that several subcommands share, and what they turn into."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from ..backends.cpu import Cpu
    from ..net import Net


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


positive.__name__ = "whole number"  # argparse names it in its message


def names(text: str) -> list[str]:
    """The parts of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add --gpu and --threads."""
    group = parser.add_argument_group("where it runs")
    group.add_argument("--gpu", metavar="IDS", help='GPUs: "0", "0,1" or "all"')
    group.add_argument(
        "--threads", metavar="N", type=positive, help="CPU threads (default: one for each core)"
    )


def add_state(parser: argparse.ArgumentParser) -> None:
    """Add --level and --stage."""
    group = parser.add_argument_group("which layers of the net")
    group.add_argument("--level", metavar="N", type=int, default=0, help="its level (default: 0)")
    group.add_argument(
        "--stage", metavar="NAMES", type=names, default=[], help="its stages, with commas"
    )


def add_log(parser: argparse.ArgumentParser) -> None:
    """Add --log_dir."""
    parser.add_argument("--log_dir", metavar="DIR", help="also write the log to a new file there")


def add_weights(parser: argparse._ActionsContainer, help: str) -> None:
    """Add --weights."""
    parser.add_argument("--weights", metavar="FILES", type=names, default=[], help=help)


def make_backend(args: argparse.Namespace) -> Cpu:
    """The backend that --gpu and --threads ask for."""
    if args.gpu is not None:
        raise UserError(
            f"--gpu {args.gpu}: this version runs on the CPU only: leave --gpu out. GPUs will "
            'need CuPy, which comes with pip install "osucaffe[cuda13]" (or [cuda12])'
        )
    from ..backends.cpu import Cpu

    return Cpu(threads=args.threads)


def load_weights(net: Net, files: list[str]) -> None:
    """Copy the weights in these files, one after the other, to the layers of the same names."""
    from ..proto import read_weights

    for file in files:
        with naming(file):
            net.load(read_weights(file))


@contextlib.contextmanager
def naming(file: str) -> Iterator[None]:
    """Put the file's name before the message of a UserError that does not name it."""
    try:
        yield
    except UserError as error:
        raise (error if file in str(error) else UserError(f"{file}: {error}")) from None
