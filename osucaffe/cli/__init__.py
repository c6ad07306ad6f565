"""Owns the command `osucaffe`: it finds the subcommand, runs it, and turns errors into messages.

Each subcommand is a module here with a one-line docstring for the list of commands,
`add_arguments(parser)` and `run(args)`. These modules import numpy, the engine and rich only when
they run, so that help comes at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import UserError

COMMANDS = (
    *("train", "test", "time", "classify", "extract_features"),
    *("device_query", "tune", "upgrade", "data", "layers", "net_spec", "draw", "parse_log"),
    *("convert_imageset", "compute_image_mean", "convert_mnist", "convert_cifar"),
)

_EPILOG = """\
Options are Caffe's; one dash or two, "-" or "_" are alike: -log_dir D, --log-dir=D.
`osucaffe COMMAND --help` tells more. OSUCAFFE_DEBUG=1 shows tracebacks of errors."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `osucaffe` with these arguments (default: the program's). Returns the exit code."""
    args = _parser().parse_args(_normalize(sys.argv[1:] if arguments is None else arguments))
    debug = os.environ.get("OSUCAFFE_DEBUG", "0") not in ("", "0")
    try:
        args.run(args)
        sys.stdout.flush()
    except UserError as error:
        if debug:
            raise
        print(f"osucaffe: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if debug:
            raise
        print("osucaffe: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `osucaffe ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="osucaffe",
        description="Train, test and time the nets of Caffe.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"osucaffe {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f".{name}", __name__)
        summary, _, description = (module.__doc__ or "").partition("\n")
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary}\n{description}".rstrip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _normalize(arguments: Sequence[str]) -> list[str]:
    """Give every option two dashes and underscores: "-log-dir=D" becomes "--log_dir=D"."""

    def option(match: re.Match[str]) -> str:
        return "--" + match[1].replace("-", "_")

    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    return [re.sub(r"^--?([a-z][\w-]+)", option, word) for word in words[:end]] + words[end:]
