"""Owns how options are declared, the kinds of their values, and those of several commands."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_LARGEST = 2**31 - 1
Parse = Callable[[str], Any]


def _called(name: str) -> Callable[[Parse], Parse]:
    """Sets the name of a value in argparse's messages."""

    def rename(parse: Parse) -> Parse:
        parse.__name__ = name
        return parse

    return rename


def _integer(least: int, most: int = _LARGEST) -> Parse:
    """An integer within these bounds; by default, one that fits a field of a prototxt."""

    @_called("whole number")
    def parse(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {value}")
        if value > most:
            raise argparse.ArgumentTypeError(f"must be at most {most}, not {value}")
        return value

    return parse


positive, extent = _integer(1), _integer(0)


@_called("number")
def not_negative(text: str) -> float:
    """A finite number of at least 0."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be at least 0, and finite, not {text}")
    return value


@_called("share")
def share(text: str) -> float:
    """A fraction between 0 and 1."""
    if not 0 < (value := float(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and below 1, not {text}")
    return value


def names(text: str) -> list[str]:
    """The items of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def stages(text: str) -> list[str]:
    """Names that a net may have: text, not arbitrary bytes."""
    if not text.isprintable():
        raise argparse.ArgumentTypeError("has letters that no name has")
    return names(text)


def files(text: str) -> list[str]:
    """A comma-separated list of at least one file."""
    if not (files := names(text)):
        raise argparse.ArgumentTypeError("names no file")
    return files


@_called("list of numbers")
def integers(text: str) -> list[int]:
    """Comma-separated integers."""
    return [int(part) for part in names(text)]


@_called("list of numbers")
def numbers(text: str) -> list[float]:
    """Comma-separated numbers, one or three."""
    if len(values := [float(part) for part in names(text)]) not in (1, 3):
        raise argparse.ArgumentTypeError(f"must be one number or three, not {text!r}")
    return values


@_called("list of numbers")
def extents(text: str) -> list[int]:
    """Height and width."""
    if len(numbers := integers(text)) != 2 or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"must be height,width, not {text!r}")
    return numbers


@_called("shape")
def shape(text: str) -> list[int]:
    """The extents of an image."""
    if min(numbers := integers(text), default=0) < 1:
        raise argparse.ArgumentTypeError(f"must be channels,height,width, not {text!r}")
    return numbers


def character(text: str) -> str:
    """A single character."""
    if len(text) != 1:
        raise argparse.ArgumentTypeError(f"must be one character, not {text!r}")
    return text


def auto_or(parse: Parse) -> Parse:
    """A value of another kind, or "auto"."""
    return _called(parse.__name__)(lambda text: text if text == "auto" else parse(text))


class Kind(NamedTuple):
    """A kind of value: its name in help pages, and its parser."""

    metavar: str
    parse: Parse = str


COUNT = Kind("N", positive)
EXTENT = Kind("N", extent)
INTEGER = Kind("N", int)
SECONDS = Kind("S", not_negative)
MEGABYTES = Kind("MB", not_negative)

COMMON: dict[str, tuple[Any, ...]] = {
    "--model": ("the net's prototxt", "FILE"),
    "--weights": ("the trained model", Kind("FILES", files), []),
    "--strict": ("stop if a layer is missing from the weights file, or the other way round",),
    "--phase": ("which phase's layers", ("TRAIN", "TEST"), "TRAIN"),
    "--level": ("the net's level (default: 0)", Kind("N", _integer(-_LARGEST)), 0),
    "--stage": ("the net's stages, separated by commas", Kind("NAMES", stages), []),
    "--json": ("print the results as JSON, for scripts",),
    "--log_dir": ("also write the log to a new file in DIR", "DIR"),
    "--precision": (
        "what the GPU computes in (default: tf32 from Ampere on, fp32 before); "
        "parameters stay in fp32",
        ("fp32", "tf32", "bf16", "fp16"),
    ),
    "--no_graph": ("launch the GPU's kernels one by one, not as CUDA graphs (for debugging)",),
    # Of a million threads oneDNN dies.
    "--threads": (
        "CPU threads (default: OMP_NUM_THREADS, or one per core)",
        Kind("N", _integer(1, 1024)),
    ),
    "--readers": (
        "threads that read data; more than 4 readers of compressed images are processes "
        "(default: at most one per core)",
        COUNT,
    ),
    "--on_bad_record": (
        "on an image that cannot be read: stop (the default), or name it, count it and go on "
        "without it",
        ("stop", "skip"),
        "stop",
    ),
    "--ignore_exif": ("take pixels as they are stored, not upright by their EXIF orientation",),
    "--backend": ("the kind of database", ("lmdb",), "lmdb"),
    "--tuning": ("a tuning table that `osucaffe tune` wrote", "FILE"),
    "--channel_wait": (
        "who waits for a message sleeps after a few looks, or keeps looking, which is faster "
        "where there are more cores than threads",
        ("sleep", "busy"),
        "sleep",
    ),
    "--interface": (
        "what other channels than mpi listen on (default: the loopback's on one host, else "
        "the first that is up)",
        "NAME",
    ),
}
"""Options of several commands: their help, kind and default."""


class Options:
    """Declares the options of a command, or of a group of them, one after the other."""

    def __init__(self, parser: argparse._ActionsContainer) -> None:
        self.parser = parser

    def __call__(
        self,
        name: str,
        help: str,
        kind: str | Kind | Sequence[Any] | None = None,
        default: Any = None,
        **more: Any,
    ) -> None:
        """Declare an option, or without dashes an argument, of a kind: text with this name in help
        pages, a Kind, or one of several choices; None: it takes no value.

        The help states the default, unless its text mentions one. more: argparse's arguments.
        """
        if kind is None:
            more["action"] = "store_true"
        else:
            if isinstance(kind, str):
                more["metavar"] = kind
            elif isinstance(kind, Kind):
                more["metavar"], more["type"] = kind
            else:
                more["choices"] = kind
            more["default"] = default
            text = f"{default:g}" if isinstance(default, float) else str(default)
            if default and default != argparse.SUPPRESS and "default" not in help:
                help += " (default: %(default)s)"
            help = help.replace("%(default)s", text)
        self.parser.add_argument(name, help=help, **more)

    def common(self, *names: str, help: str = "", **more: Any) -> None:
        """Declare options of COMMON. help: replaces the one there."""
        for name in names:
            text, *kind = COMMON[name]
            self(name, help or text, *kind, **more)

    def group(self, title: str, description: str | None = None) -> Options:
        """Options with a separate heading."""
        return Options(self.parser.add_argument_group(title, description))

    def one_of(self, **settings: Any) -> Options:
        """Mutually exclusive options."""
        assert isinstance(self.parser, argparse.ArgumentParser)
        return Options(self.parser.add_mutually_exclusive_group(**settings))

    def net(self, help: str = "the net's prototxt") -> None:
        """A net, which may be named without an option, too."""
        add = self.one_of(required=True)
        for name, text in (("model", help), ("--model", "the same")):
            more = {"nargs": "?"} if name == "model" else {}
            add(name, text, "NET", argparse.SUPPRESS, **more)

    def commands(self, dest: str, **settings: Any) -> Callable[[str, str], Options]:
        """A function that declares a subcommand by name and help. dest: the attribute for the
        name of the selected one."""
        assert isinstance(self.parser, argparse.ArgumentParser)
        parsers = self.parser.add_subparsers(dest=dest, metavar="WHAT", **settings)
        return lambda name, help: Options(parsers.add_parser(name, help=help, allow_abbrev=False))

    def device(self, gpu: str = "the number of the GPU") -> None:
        """Where it runs. gpu: what --gpu may be given."""
        add = self.group("where it runs")
        add("--gpu", f"{gpu} (default: the CPU)", "ID")
        add.common("--precision", "--no_graph", "--threads")

    def shared_device(self) -> None:
        """Where it runs, and on how many ranks, which share the batches."""
        self.device('the number of the GPU; "0,1" or "all": a rank on each')
        add = self.group("several ranks", "The ranks share the batches; rank 0 prints the results.")
        add("--ranks", "start N ranks on this machine (or start them by mpiexec or srun)", COUNT)
        self.starts_ranks()

    def starts_ranks(self) -> None:
        """Ranks are started that do not train: nothing of what `train` may be asked for."""
        self.parser.set_defaults(
            starts_ranks=True, servers=0, ranks_per_gpu=None, max_restarts=0, elastic=False
        )

    def state(self) -> None:
        """Which layers of the net."""
        self.group("which layers of the net").common("--level", "--stage")

    def bucket(self, help: str) -> None:
        """How much travels at once."""
        self("--bucket_mb", help, Kind("MB", auto_or(not_negative)), 16.0)
