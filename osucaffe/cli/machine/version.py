"""Print the version, as --version does.

osucaffe version --json     with those of Python and NumPy"""

from __future__ import annotations

import argparse

from .. import json_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    json_output.add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Print it."""
    from ... import __version__

    if not args.json:
        print(f"osucaffe {__version__}")
        return
    import importlib.metadata
    import platform

    versions = {"osucaffe": __version__, "python": platform.python_version()}
    versions["numpy"] = importlib.metadata.version("numpy")
    json_output.print_json(versions)
