"""Owns what a part asks of one above it, which it may not import: the one above puts it here."""

from __future__ import annotations

from collections.abc import Callable


def _nothing() -> None:
    """There is no interface in this process."""


provide_caffe: Callable[[], None] = _nothing
"""Lets `import caffe`, with which modules of Python layers begin, find pycaffe's interface: set by
the command line, and by the interface itself when it is imported."""

python_layers = True
"""Whether layers may import the modules that nets name: --no_python_layers says no."""
