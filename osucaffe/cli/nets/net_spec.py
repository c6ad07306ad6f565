"""Owns `osucaffe net_spec`: nets written in Python become prototxts, and the other way round."""

from __future__ import annotations

import argparse
import keyword
import runpy
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ... import pycaffe
from ...errors import UserError, listed
from ...graph.prototxt.filter import filter_layers, net_state
from ...proto import NetParameter, format_text, read_net, title
from ...pycaffe.net_spec import param_field


def run(args: argparse.Namespace) -> None:
    """Print the other form."""
    is_python = Path(args.net).suffix == ".py"
    net = _run_script(args.net, args.object) if is_python else read_net(args.net)
    if args.phase:
        net = filter_layers(net, net_state(net, args.phase, args.level, args.stage))
        net.ClearField("state")
    print((format_text if is_python else to_python)(net), end="")


def _run_script(path: str, name: str | None) -> Any:
    """The net that a Python file makes."""
    pycaffe.install()
    if not Path(path).is_file():
        raise UserError(f"{path}: there is no such file")
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


# -- prototxt to Python --------------------------------------------------------------------------


def to_python(net: Any) -> str:
    """Python code that makes this net with NetSpec. UserError where a blob is made twice."""
    lines = [
        "import caffe",
        "from caffe import layers as L",
        "from caffe import params as P",
        "",
        "n = caffe.NetSpec()",
    ]
    blobs: dict[str, str] = {}  # the expression that stands for a blob, as it is by now
    used: set[str] = set()
    made = {name for layer in net.layer for name in layer.top}
    for layer in net.layer:
        for name in layer.bottom:
            if name not in blobs:
                raise UserError(f'{title(layer)}: no earlier layer makes its bottom "{name}"')
        inputs = [blobs[name] for name in layer.bottom]
        in_place = bool(layer.top) and list(layer.top) == list(layer.bottom)
        names = list(layer.top)
        settings = _settings(layer)
        if in_place:
            settings.insert(0, "in_place=True")
        if in_place or not names:  # it makes no blob that could name it in the script
            names = [layer.name or layer.type.lower()]
            while names[0] in used | made:
                names[0] += "_"
        if names[0] != layer.name:
            settings.insert(0, f"name={layer.name!r}")
        if len(layer.top) != 1:
            settings.insert(0, f"ntop={len(layer.top)}")
        for name in names:
            if name in used:
                raise UserError(
                    f'{title(layer)}: "{name}" is made already; choose the layers of one phase: '
                    "--phase TRAIN or --phase TEST"
                )
        used.update(names)
        variables = [_variable(name) for name in names]
        blobs |= dict(zip(layer.top, variables, strict=False))
        lines.append(f"{', '.join(variables)} = L.{layer.type}({', '.join(inputs + settings)})")
    lines += ["", "net = n.to_proto()"]
    for field, value in net.ListFields():
        if field.name in ("name", "force_backward", "debug_info"):
            lines.append(f"net.{field.name} = {value!r}")
    return "\n".join([*lines, "print(net)", ""])


def _variable(name: str) -> str:
    plain = name.isidentifier() and not keyword.iskeyword(name) and name not in ("tops", "to_proto")
    return f"n.{name}" if plain and not name.startswith("_") else f"n[{name!r}]"


def _settings(layer: Any) -> list[str]:
    """The keyword arguments for all fields of a layer: its type's own stand alone."""
    settings = []
    for field, value in layer.ListFields():
        if field.name in ("name", "type", "bottom", "top"):
            continue
        if field.name == param_field(layer.type):
            settings += _fields(value)
        else:
            settings.append(f"{field.name}={_expression(field, value)}")
    return settings


def _fields(message: Any) -> list[str]:
    return [f"{field.name}={_expression(field, value)}" for field, value in message.ListFields()]


def _expression(field: Any, value: Any) -> str:
    if hasattr(value, "extend"):  # a repeated field
        return f"[{', '.join(_single(field, item) for item in value)}]"
    return _single(field, value)


def _single(field: Any, value: Any) -> str:
    if field.message_type is not None:
        return f"dict({', '.join(_fields(value))})"
    if field.enum_type is not None:
        owner, name = field.enum_type.containing_type, field.enum_type.values_by_number[value].name
        if owner is None:
            return f"caffe.{name}"
        return f"P.{owner.name.removesuffix('Parameter')}.{name}"
    if field.type == field.TYPE_FLOAT:
        return str(np.float32(value))  # the fewest digits that give this float again
    return repr(value)
