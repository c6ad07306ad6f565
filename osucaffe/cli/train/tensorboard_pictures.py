"""Owns the pictures that TensorBoard shows: a few test records and their predictions."""

from __future__ import annotations

import numpy as np

from ...errors import UserError
from ...graph.prototxt.adapt import for_prediction, image_blob
from ...layers.reading.feed import Stream
from ...net import Net
from ...proto import caffe_pb2
from ...solvers.solver import Solver
from ..data.contact_sheet import draw_contact_sheet
from ..images import png
from ..score.predictions import Pictures, class_names, scored_blobs, sources_of

_SHOWN = 12


class SamplePredictions:
    """The first records that a solver's first test net reads, in a separate net for prediction: the
    same ones at each test, to show the progress.

    The training and test nets, their memory and their data stay as they are. UserError where the
    test net is no classifier of images.
    """

    def __init__(self, solver: Solver) -> None:
        tested = solver.test_nets[0]
        blobs = scored_blobs(tested.param)
        if blobs is None:
            raise UserError("no layer of the test net tells which of its blobs are labels")
        label, image = blobs.labels, image_blob(tested.param)
        read = caffe_pb2.NetParameter(name=tested.param.name)
        read.layer.extend(layer for layer in tested.param.layer if not layer.bottom)
        data = Net(read, phase="TEST", backend=solver.backend, inspectable=True, gradients=False)
        names = {top: layer.bottom[0] for layer in tested.param.layer if layer.type == "Split"
                 for top in layer.top}  # fmt: skip
        try:
            data.forward()
            pictures = Pictures(data)
            count = min(_SHOWN, data.blobs[image].shape[0])
            images = [pictures.pixels(row) for row in range(count)]
            label = names.get(label, label)
            labels = data.read(label).ravel() if label in data.blobs else ()
            self._images = data.read(image)[:count]
        finally:
            for layer in data.layers:
                if isinstance(layer, Stream):
                    layer.close()
        self._pictures = [image for image in images if image is not None]
        if not self._pictures or len(labels) != data.blobs[image].shape[0]:
            raise UserError("the test net has no label for each image")
        self._labels = [int(label) for label in labels[:count]]
        self._image, self._trained = image, solver.net
        self._net = Net(
            for_prediction(tested.param, self._images.shape),
            phase="TEST",
            backend=solver.backend,
            inference=True,
            wanted=["prob"],
        )
        classes = self._net.blobs["prob"].shape
        if len(classes) < 2 or classes != (count, classes[1], *[1] * (len(classes) - 2)):
            raise UserError("the test net has no class for each image")
        self._names = class_names(sources_of(tested.param), classes[1])

    def draw(self, iteration: int) -> tuple[bytes, int, int]:
        """A PNG of the records with their current predictions and labels; its width, height."""
        self._take_weights()
        self._net.write(self._image, self._images)
        self._net.forward()
        scores = self._net.read("prob").reshape(len(self._images), -1)
        predicted = scores.argmax(axis=1)
        cells: list[tuple[np.ndarray, int | str]] = []
        for row, (pixels, label) in enumerate(zip(self._pictures, self._labels, strict=True)):
            text = f"{self._names[predicted[row]]} {scores[row, predicted[row]]:.0%}\n"
            cells.append((pixels, text + ("right" if predicted[row] == label else self._is(label))))
        right = int((predicted == self._labels).sum())
        title = f"{right} of these {len(cells)} test records are right"
        sheet = draw_contact_sheet(cells, title, f"iteration {iteration:,}")
        return png(sheet), sheet.width, sheet.height

    def _is(self, label: int) -> str:
        known = 0 <= label < len(self._names)
        return f"is {self._names[label] if known else label}"

    def _take_weights(self) -> None:
        """Copy the training net's weights."""
        backend = self._net.backend
        trained = {layer.name: layer for layer in self._trained.layers if layer.parameters}
        for layer in self._net.layers:
            if layer.parameters and layer.name in trained:
                pairs = zip(layer.parameters, trained[layer.name].parameters, strict=True)
                for target, other in pairs:
                    backend.write(target.data, backend.read(other.data))
        self._net.refresh()
