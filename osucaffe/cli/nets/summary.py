"""Owns `osucaffe summary`: a net's layers, shapes, parameters, operations and memory."""

from __future__ import annotations

import argparse
import logging
import re
from dataclasses import dataclass
from typing import Any

from ...backends.cpu import Cpu
from ...errors import UserError
from ...files import read_bytes
from ...graph.flops import by_layer, flops
from ...net import Net
from ...proto import NetParameter, read_net, read_solver
from ...solvers.nets import training_net
from ...solvers.solver import Solver
from .. import output
from ..output import scaled, table

_MAPS = ("DenseImageData", "ImageLabelmapData", "ImageSegData")
_READERS = ("Data", "ImageData", "WindowData", "AnnotatedData", "HDF5Data", "MemoryData", *_MAPS)
"""Layers that read data, and those of them whose labels are maps."""
_LAYER = re.compile(r"^[ \t]*layers?\s*(?::\s*)?\{", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """A layer: its type, the shapes of its tops, its parameters, operations of a batch."""

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
    param = _read(args)
    try:
        net = Net(param, phase=args.phase, backend=Cpu(), level=args.level, stages=args.stage)
    except UserError as error:
        if not args.shape and any(layer.type in _READERS for layer in param.layer):
            raise UserError(f"{error} (--shape C,H,W: read no data)") from None
        raise
    rows = describe(net)
    if args.json:
        output.print_json(
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
    """The net of a file, or of a solver's; with --shape, one that reads nothing."""
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
    batches = (getattr(setting, "batch_size", 0) for setting in settings)
    crop, size = layer.transform_param, layer.transform_param.crop_size
    channels, *extents = shape
    if size or crop.crop_height:
        extents = [size or crop.crop_height, size or crop.crop_width]
    batch = max(batches) or 1
    second = [batch, 1, *extents] if layer.type in _MAPS else [batch]
    layer.type = "Input"
    layer.ClearField("transform_param")
    for dims in [[batch, channels, *extents], second, [batch, 1, 1, 2]][: len(layer.top)]:
        layer.input_param.shape.add(dim=dims)


def describe(net: Net) -> list[Row]:
    """A row for each layer, except splits. Shared parameters count at their first
    layer."""
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
        f"Operations of a batch: {scaled(forward, 'FLOP')} forward"
        + (f", {scaled(backward, 'FLOP')} backward" if backward else ""),
        "Memory: " + ", ".join(f"{scaled(value, 'B')} {what}" for what, value in memory.items()),
    ]


def _memory(net: Net) -> dict[str, int]:
    return {what: nbytes for what, nbytes in sums(net).items() if nbytes}


def log_summary(solver: Solver) -> None:
    """Log a summary of the net that is trained, and its iterations in epochs."""
    logger = logging.getLogger("osucaffe")
    for line in short(solver.net, describe(solver.net)):
        logger.info("%s", line)
    if epochs := solver.epochs:
        logger.info(
            "%s: %s records, %s per iteration: one epoch is %.4g iterations, max_iter %s is "
            "%.4g epochs",
            *(epochs.layer, f"{epochs.count:,}", f"{epochs.per_iteration:,}"),
            epochs.count / epochs.per_iteration,
            *(f"{solver.param.max_iter:,}", epochs.epoch(solver.param.max_iter)),
        )


def _print(rows: list[Row]) -> None:
    cells = [
        (row.name, row.type, row.shape, f"{row.parameters:,}" if row.parameters else "")
        + tuple(scaled(flops, "FLOP") if flops else "" for flops in (row.forward, row.backward))
        for row in rows
    ]
    headings = ("layer", "type", "output", "parameters", "forward", "backward")
    print(*table("<<<>>>", headings, *cells), sep="\n")


logger = logging.getLogger("osucaffe")


def sums(net: Net) -> dict[str, int]:
    """Bytes in three sums: blobs with their gradients and scratch, parameters, and their
    gradients and history."""
    backend, plan = net.backend, net.memory
    return {
        "blobs": plan.size + sum(map(backend.nbytes, plan.persistent)),
        "parameters": backend.nbytes(net.arena.data),
        "gradients of parameters": backend.nbytes(net.arena.diff),
    }


def memory_of(net: Net) -> dict[str, int]:
    """Bytes by what they are for. Scratch, such as workspaces of libraries, is part of the plan."""
    backend, plan = net.backend, net.memory
    scratch = [
        sum(map(backend.nbytes, call.scratch)) for program in net.programs for call in program
    ]
    parameters = sums(net)["parameters"]
    return {
        "blobs, their gradients and scratch, in one piece": plan.size,
        "the same if nothing were shared": plan.unshared,
        "of it: the most scratch (workspaces) of one call": max(scratch, default=0),
        "blobs that keep their memory": sum(map(backend.nbytes, plan.persistent)),
        "parameters": parameters,
        "gradients of the parameters": backend.nbytes(net.arena.diff),
        "each history buffer of a solver (SGD has one, Adam two)": parameters,
        **backend.memory_in_use(),
    }


def report_memory(net: Net) -> None:
    """Log `memory_of`."""
    logger.info("Memory:")
    for name, nbytes in memory_of(net).items():
        if nbytes:
            logger.info("%12.3f MB  %s", nbytes / 1e6, name)
