"""`osucaffe summary`: a net's layers, shapes, parameters, operations and memory."""

from __future__ import annotations

import logging
import re
from typing import Any

from ...api.summary import COLUMNS, Row, describe, totals
from ...api.tables import scaled, table
from ...backends.cpu import Cpu
from ...errors import UserError
from ...files import read_bytes
from ...net import Net
from ...proto import NetParameter, read_net, read_solver
from ...solvers.nets import training_net
from ...solvers.solver import Solver
from .. import output
from .options import Summary

_MAPS = ("DenseImageData", "ImageLabelmapData", "ImageSegData")
_READERS = ("Data", "ImageData", "WindowData", "AnnotatedData", "HDF5Data", "MemoryData", *_MAPS)
"""Layers that read data, and those of them whose labels are maps."""
_LAYER = re.compile(r"^[ \t]*layers?\s*(?::\s*)?\{", re.MULTILINE)


def run(options: Summary) -> None:
    """Build the net and print the table."""
    param = _read(options)
    try:
        net = Net(
            param,
            phase=options.phase,
            backend=Cpu(),
            level=options.state.level,
            stages=options.state.stages,
        )
    except UserError as error:
        if not options.shape and any(layer.type in _READERS for layer in param.layer):
            raise UserError(f"{error} (--shape C,H,W: read no data)") from None
        raise
    rows = describe(net)
    if options.json:
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
    align, headings = COLUMNS
    print(*table(align, headings, *(row.cells for row in rows)), sep="\n")
    print()
    for line in short(net, rows):
        print(line)


def _read(options: Summary) -> NetParameter:
    """The net of a file, or of a solver's; with --shape, one that reads nothing."""
    if _LAYER.search(read_bytes(options.model).decode(errors="replace")):
        param = read_net(options.model)
    else:
        param = training_net(read_solver(options.model), options.model, read_net).param
    if not options.shape:
        return param
    for layer in param.layer:
        if layer.type in _READERS:
            _read_nothing(layer, options.shape)
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


def short(net: Net, rows: list[Row]) -> list[str]:
    """The sums, in a few lines."""
    memory = [f"{scaled(value, 'B')} {what}" for what, value in _memory(net).items()]
    return [*totals(net, rows), f"Memory: {', '.join(memory)}"]


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
