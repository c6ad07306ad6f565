"""Summarize a net: its layers, shapes, parameters, operations and memory.

  osucaffe summary models/lenet/train_val.prototxt
  osucaffe summary solver.prototxt                       the net that it trains
  osucaffe summary train_val.prototxt --shape 3,227,227  if its images are not here

Operations are those of one batch, as in `osucaffe time`: a multiply-add counts as two.
The backward column counts the gradients of data and weights."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import json_output, options
from ..units import operations, size

if TYPE_CHECKING:
    from ...net import Net
    from ...proto import NetParameter
    from ...solvers.solver import Solver

_READERS = ("Data", "ImageData", "WindowData", "AnnotatedData", "HDF5Data")
_LAYER = re.compile(r"^\s*layers?\s*:?\s*\{", re.MULTILINE)


def _shape(text: str) -> list[int]:
    if min(shape := [int(part) for part in options.names(text)], default=0) < 1:
        raise argparse.ArgumentTypeError(f"must be channels,height,width, not {text!r}")
    return shape


_shape.__name__ = "shape"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument(
        "model", metavar="FILE", nargs="?", help="the prototxt of a net, or of a solver"
    )
    given.add_argument("--model", metavar="FILE", dest="named", help="the same")
    parser.add_argument(
        "--phase",
        type=str.upper,
        choices=("TRAIN", "TEST"),
        default="TRAIN",
        help="which phase's layers (default: TRAIN)",
    )
    parser.add_argument(
        "--shape",
        metavar="C,H,W",
        type=_shape,
        help="do not read any data: assume images of this shape",
    )
    json_output.add_json(parser)
    options.add_state(parser)


@dataclass(frozen=True)
class Row:
    """A layer: its type, the shapes of its tops, its own parameters, operations of a batch."""

    name: str
    type: str
    shapes: list[tuple[int, ...]]
    parameters: int
    forward: int
    backward: int

    @property
    def shape(self) -> str:
        """That of the first top."""
        return "x".join(map(str, self.shapes[0])) if self.shapes else ""


def run(args: argparse.Namespace) -> None:
    """Build the net and print the table."""
    from ...backends.cpu import Cpu
    from ...errors import UserError
    from ...net import Net

    args.model = args.model or args.named
    param = _read(args)
    try:
        net = Net(param, phase=args.phase, backend=Cpu(), level=args.level, stages=args.stage)
    except UserError as error:
        if not args.shape and any(layer.type in _READERS for layer in param.layer):
            raise UserError(f"{error} (--shape C,H,W: read no data)") from None
        raise
    rows = describe(net)
    if args.json:
        json_output.print_json(
            {
                "name": net.name,
                "phase": net.phase,
                "layers": [vars(row) for row in rows],
                "parameters": sum(row.parameters for row in rows),
                "forward": sum(row.forward for row in rows),
                "backward": sum(row.backward for row in rows),
                "memory": _memory(net),
            }
        )
        return
    _print(rows)
    print()
    for line in short(net, rows):
        print(line)


def _read(args: argparse.Namespace) -> NetParameter:
    """The net of a file, which a solver may name; with --shape, one that reads nothing."""
    from ...files import read_bytes
    from ...proto import read_net, read_solver
    from ...solvers.nets import training_net

    if _LAYER.search(read_bytes(args.model).decode(errors="replace")):
        param = read_net(args.model)
    else:
        param = training_net(read_solver(args.model), args.model, read_net).param
    if not args.shape:
        return param
    for layer in param.layer:
        if layer.type in _READERS:
            _read_nothing(layer, args.shape)
    return param


def _read_nothing(layer: Any, shape: list[int]) -> None:
    """Make an Input layer of one that reads images: of the images first, of labels then."""
    settings = (getattr(layer, name) for name in layer.DESCRIPTOR.fields_by_name if "data" in name)
    batches = (getattr(each, "batch_size", 0) for each in settings)
    crop = layer.transform_param.crop_size
    channels, *extents = shape
    batch = max(batches) or 1
    layer.type = "Input"
    layer.ClearField("transform_param")
    for index in range(len(layer.top)):
        image = [batch, channels, *([crop] * len(extents) if crop else extents)]
        layer.input_param.shape.add(dim=[batch] if index else image)


def describe(net: Net) -> list[Row]:
    """A row for each layer, but for those that only hand a blob to several others. Parameters
    that layers share count where they are first."""
    from ...graph.flops import by_layer, flops

    count = len(net.layers)
    forward, backward = (
        [sum(map(flops, calls)) for calls in by_layer(program, count)]
        for program in [*net.programs, []][:2]
    )
    owned: dict[str, int] = {}
    for parameter in net.parameters:
        owned[parameter.layer] = owned.get(parameter.layer, 0) + parameter.blob.data.count
    return [
        Row(
            node.layer.label,
            node.layer.type,
            [blob.shape for blob in node.top],
            owned.get(node.layer.label, 0),
            forward[index],
            backward[index],
        )
        for index, node in enumerate(net.nodes)
        if node.layer.type != "Split"
    ]


def short(net: Net, rows: list[Row]) -> list[str]:
    """The sums, in a few lines."""
    parameters = sum(row.parameters for row in rows)
    learn = sum(row.parameters > 0 for row in rows)
    forward, backward = (sum(getattr(row, way) for row in rows) for way in ("forward", "backward"))
    memory = _memory(net)
    name = f'Net "{net.name}"' if net.name else "The net"
    return [
        f"{name}, {net.phase}: {len(rows)} layers, {parameters:,} parameters in {learn} of them",
        f"Operations of a batch: {operations(forward)} forward"
        + (f", {operations(backward)} backward" if backward else ""),
        "Memory: " + ", ".join(f"{size(value)} {what}" for what, value in memory.items()),
    ]


def _memory(net: Net) -> dict[str, int]:
    from .memory import sums

    return {what: nbytes for what, nbytes in sums(net).items() if nbytes}


def log_summary(solver: Solver) -> None:
    """Log in short what is trained, and what its iterations are in epochs."""
    import logging

    logger = logging.getLogger("osucaffe")
    for line in short(solver.net, describe(solver.net)):
        logger.info("%s", line)
    if epochs := solver.epochs:
        logger.info(
            "%s: %s records, %s per iteration: one epoch is %.4g iterations, max_iter %s is "
            "%.4g epochs",
            *(epochs.layer, f"{epochs.count:,}", f"{epochs.each:,}", epochs.count / epochs.each),
            *(f"{solver.param.max_iter:,}", epochs.epoch(solver.param.max_iter)),
        )


def _print(rows: list[Row]) -> None:
    """The table, as wide as its longest names."""
    headings = ("layer", "type", "output", "parameters", "forward", "backward")
    cells = [
        (row.name, row.type, row.shape, f"{row.parameters:,}" if row.parameters else "")
        + tuple(operations(each) if each else "" for each in (row.forward, row.backward))
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    for row in headings, *cells:
        left = [cell.ljust(width) for cell, width in zip(row[:3], widths[:3], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
        print("  ".join([*left, *right]).rstrip())
