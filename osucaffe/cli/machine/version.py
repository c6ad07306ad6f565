"""`osucaffe version`."""

from __future__ import annotations

import importlib.metadata
import platform

from ... import __version__
from .. import output
from .options import Version


def run(options: Version) -> None:
    """Print it."""
    if not options.json:
        print(f"osucaffe {__version__}")
        return

    versions = {"osucaffe": __version__, "python": platform.python_version()}
    versions["numpy"] = importlib.metadata.version("numpy")
    output.print_json(versions)
