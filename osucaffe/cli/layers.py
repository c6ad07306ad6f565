"""List the layer types that there are.

Prints each type with a line that says what it does."""

from __future__ import annotations

import argparse
import inspect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(args: argparse.Namespace) -> None:
    """Print the list."""
    from ..layer import layer_types

    types = layer_types()
    width = max(map(len, types))
    for name, layer in types.items():
        print(f"{name:{width}}  {(inspect.getdoc(layer) or '').partition(chr(10))[0]}")
