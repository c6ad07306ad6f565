"""Owns `osucaffe export`: a net with its weights as an ONNX model, which says how it is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ... import log
from ...data.pictures.preprocessing import Preprocessing, find_preprocessing
from ...data.pictures.transform import centre
from ...data.sets.photo_set import LABELS, read_labels
from ...errors import UserError
from ...files import write_bytes
from ...net import Net
from .. import loading
from .options import Export


def run(options: Export) -> None:
    """Build, load, write."""
    from ...onnx import OPSET, for_any_batch, to_onnx

    log.start()
    net = loading.load_net(options, reads=False, phase="TEST", inspectable=True, gradients=False)
    shapes = {name: net.blobs[name].shape for name in net.inputs}
    model = None if options.batch else for_any_batch(net)
    batches = "any batch"
    if model is None:
        net.reshape(
            {name: (options.batch or shape[0], *shape[1:]) for name, shape in shapes.items()}
        )
        model = to_onnx(net)
        batches = (
            f"batch {options.batch}" if options.batch else "fixed shapes, as nodes depend on them"
        )
    trained = None
    if options.weights and net.inputs:
        [(file, weights), *_] = loading.read_weights(options.weights)
        trained = find_preprocessing(weights, file, net.inputs[0])
    if options.with_preprocessing:
        if trained is None or len(net.inputs) != 1:
            raise UserError(
                "--with_preprocessing: the weights do not say how images were preprocessed for "
                "the net's only input"
            )
        _prepend(model.graph, net, trained)
    _describe(
        model, Path(options.model).parent / LABELS, trained, inside=options.with_preprocessing
    )
    write_bytes(options.onnx, model.SerializeToString())
    print(f"wrote {options.onnx}: {len(model.graph.node)} nodes, opset {OPSET}, {batches}")


def _describe(model: Any, labels: Path, trained: Preprocessing | None, *, inside: bool) -> None:
    """Say in the model's metadata what its classes are called and what its input is to be."""
    from onnx import helper

    notes = {}
    if labels.is_file():
        notes["classes"] = json.dumps(read_labels(labels))
    if trained:
        rest = "" if inside else f", less {trained}"
        notes["input"] = f"bytes 0..255, channels blue, green, red{rest}"
    helper.set_model_props(model, notes)


def _prepend(graph: Any, net: Net, trained: Preprocessing) -> None:
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
