"""`osucaffe net_spec`: nets written in Python become prototxts."""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ... import pycaffe
from ...errors import UserError, listed
from ...proto import NetParameter, format_text
from .options import NetSpec


def run(options: NetSpec) -> None:
    """Print the prototxt."""
    print(format_text(_run_script(options.net, options.object)), end="")


def _run_script(path: str, name: str | None) -> Any:
    """The net that a Python file makes."""
    pycaffe.install()
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file")
    namespace = _run(path, lambda: runpy.run_path(path))
    if name is not None:
        if name not in namespace:
            raise UserError(f"{path}: makes nothing named {name}")
        net = _run(path, namespace[name]) if callable(namespace[name]) else namespace[name]
    else:
        nets = {
            name: value
            for name, value in namespace.items()
            if isinstance(value, pycaffe.NetSpec | NetParameter)
        }
        if len(nets) != 1:
            makes = (
                f"{len(nets)} nets: {listed(nets)}; name one"
                if nets
                else ("no net; name a function that does")
            )
            raise UserError(f"{path}: makes {makes} with --object")
        (net,) = nets.values()
    net = net.to_proto() if hasattr(net, "to_proto") else net
    if not isinstance(net, NetParameter):
        raise UserError(f"{path}: {name} gives {type(net).__name__}, not a net")
    return net


def _run(path: str, function: Callable[[], Any]) -> Any:
    """What a function of the file gives. UserError names the line where it fails."""
    try:
        return function()
    except UserError:
        raise
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        text = error.msg if isinstance(error, SyntaxError) else error
        position = f"{path}, line {line}" if line else path
        raise UserError(f"{position}: {type(error).__name__}: {text}") from error
