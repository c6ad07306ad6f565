"""`oc.export`: a net, or a model with its preprocessing, as an ONNX model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from .. import net as engine
from ..backends.cpu import Cpu
from ..data.pictures.preprocessing import Preprocessing
from ..data.pictures.transform import centre
from ..data.sets.photo_set import LABELS, read_labels
from ..errors import UserError
from ..files import write_bytes
from ..onnx import OPSET, for_any_batch, to_onnx
from .model import Model
from .net import Net


def export(
    what: Net | Model, path: str | Path, *, batch: int | None = None, preprocessing: bool = False
) -> None:
    """Write an ONNX model, for any batch size (batch: for this one). UserError.

    Of a model, its metadata has the names of the classes, and what is to be done to images.
    preprocessing: it subtracts the mean and scales by itself, of bytes 0..255, blue first.
    """
    net = what.net if isinstance(what, Model) else what
    if not isinstance(net, Net):
        raise UserError(f"{type(what).__name__}: no Net and no Model, as oc.load gives one")
    made = engine.Net(net.param, backend=Cpu(), phase="TEST", inspectable=True, gradients=False)
    with net.running():
        made.load(net.engine.to_proto())
    notes = (what.folder / LABELS, what.trained) if isinstance(what, Model) else (None, None)
    write(made, path, *notes, batch=batch, inside=preprocessing)


def write(
    net: engine.Net,
    path: str | Path,
    labels: Path | None,
    trained: Preprocessing | None,
    *,
    batch: int | None,
    inside: bool,
) -> str:
    """Write a net as ONNX, with what is known of its classes and its images. inside: with their
    preprocessing. Returns what was written."""
    model, batches = _convert(net, batch)
    if inside:
        if trained is None or len(net.inputs) != 1:
            raise UserError(
                "the weights do not say how images were preprocessed for the net's only input: "
                "export it without preprocessing"
            )
        _prepend(model.graph, net, trained)
    _describe(model, labels, trained, inside=inside)
    write_bytes(path, model.SerializeToString())
    return f"{len(model.graph.node)} nodes, opset {OPSET}, {batches}"


def _convert(net: engine.Net, batch: int | None) -> tuple[Any, str]:
    """The ModelProto of a net (see `to_onnx`) for any batch size, where that can be, or for this
    one; and for which it is."""
    shapes = {name: net.blobs[name].shape for name in net.inputs}
    if not batch and (model := for_any_batch(net)) is not None:
        return model, "any batch"
    net.reshape({name: (batch or shape[0], *shape[1:]) for name, shape in shapes.items()})
    return to_onnx(net), f"batch {batch}" if batch else "fixed shapes, as nodes depend on them"


def _describe(
    model: Any, labels: Path | None, trained: Preprocessing | None, *, inside: bool
) -> None:
    """Say in the model's metadata what its classes are called and what its input is to be."""
    from onnx import helper

    notes = {}
    if labels and labels.is_file():
        notes["classes"] = json.dumps(read_labels(labels))
    if trained:
        rest = "" if inside else f", less {trained}"
        notes["input"] = f"bytes 0..255, channels blue, green, red{rest}"
    helper.set_model_props(model, notes)


def _prepend(graph: Any, net: engine.Net, trained: Preprocessing) -> None:
    """Let the graph subtract the mean and scale."""
    from onnx import helper, numpy_helper

    (name,) = net.inputs
    steps = []
    if (mean := trained.mean()) is not None:
        flat = mean.ndim == 1
        mean = mean[:, None, None] if flat else centre(mean, net.blobs[name].shape[2:], axis=1)
        steps.append(("Sub", "mean", mean[None]))
    if trained.scale != 1:
        steps.append(("Mul", "scale", np.array(trained.scale, np.float32)))
    value, nodes = name, []
    for kind, what, constant in steps:
        array = np.ascontiguousarray(constant, np.float32)
        graph.initializer.append(numpy_helper.from_array(array, f"{name}.{what}"))
        made = f"{name}.less_{what}" if kind == "Sub" else f"{name}.scaled"
        nodes.append(helper.make_node(kind, [value, f"{name}.{what}"], [made]))
        value = made
    for node in graph.node:
        node.input[:] = [value if given == name else given for given in node.input]
    later = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *later])
