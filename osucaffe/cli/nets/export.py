"""`osucaffe export`: a net with its weights as an ONNX model, which says how it is used."""

from __future__ import annotations

from pathlib import Path

from ... import log
from ...api.export import write
from ...data.pictures.preprocessing import find_preprocessing
from ...data.sets.photo_set import LABELS
from .. import loading
from .options import Export


def run(options: Export) -> None:
    """Build, load, write."""
    log.start()
    net = loading.load_net(options, reads=False, phase="TEST", inspectable=True, gradients=False)
    trained = None
    if options.weights and net.inputs:
        [(file, weights), *_] = loading.read_weights(options.weights)
        trained = find_preprocessing(weights, file, net.inputs[0])
    labels = Path(options.model).parent / LABELS
    wrote = write(
        *(net, options.onnx, labels, trained),
        batch=options.batch,
        inside=options.with_preprocessing,
    )
    print(f"wrote {options.onnx}: {wrote}")
