"""`osucaffe layers`: a line for each type, with the settings that it reads."""

from __future__ import annotations

import inspect
import textwrap

from ...layer import layer_types, settings_of
from .options import Layers


def run(options: Layers) -> None:
    """Print the list."""
    types = layer_types()
    width = max(map(len, types)) + 2
    for name, layer in types.items():
        print(f"{name:{width}}{(inspect.getdoc(layer) or '').partition(chr(10))[0]}")
        for message, settings in settings_of(layer).items():
            text = f"{message}: {', '.join(settings)}"
            indent = " " * width
            print(textwrap.fill(text, 100, initial_indent=indent, subsequent_indent=indent + "  "))
