"""Owns `osucaffe export`: a net with its weights as an ONNX model, which says how it is used."""

from __future__ import annotations

from pathlib import Path

from ... import log
from ...api.export import convert, describe, prepend
from ...data.pictures.preprocessing import find_preprocessing
from ...data.sets.photo_set import LABELS
from ...errors import UserError
from ...files import write_bytes
from ...onnx import OPSET
from .. import loading
from .options import Export


def run(options: Export) -> None:
    """Build, load, write."""
    log.start()
    net = loading.load_net(options, reads=False, phase="TEST", inspectable=True, gradients=False)
    model, batches = convert(net, options.batch)
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
        prepend(model.graph, net, trained)
    describe(model, Path(options.model).parent / LABELS, trained, inside=options.with_preprocessing)
    write_bytes(options.onnx, model.SerializeToString())
    print(f"wrote {options.onnx}: {len(model.graph.node)} nodes, opset {OPSET}, {batches}")
