"""Owns `osucaffe version`."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform

from ... import __version__
from .. import output


def run(args: argparse.Namespace) -> None:
    """Print it."""
    if not args.json:
        print(f"osucaffe {__version__}")
        return

    versions = {"osucaffe": __version__, "python": platform.python_version()}
    versions["numpy"] = importlib.metadata.version("numpy")
    output.print_json(versions)
