"""`osucaffe classify`: the most likely labels of images, as text, JSON or a picture."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...api.curves import COLOURS
from ...api.explain import Explainer
from ...api.images import load_image
from ...api.model import BATCH
from ...api.model_files import class_names
from ...backends.cores import usable_cores
from ...cli import loading, output, plots
from ...cli.images import find_files, save_image
from ...cli.output import make_folder, short
from ...cli.score import sharding
from ...cli.score.predictions import Predictions
from ...comm.job.job import Job
from ...data.config import DataConfig, Inputs
from ...data.pictures.preprocessing import find_preprocessing
from ...data.sets.photo_set import LABELS
from ...errors import UserError, naming
from ...net import Net
from ...proto import read_net
from ...proto.caffe_pb2 import NetParameter
from .classify_input import ImageFiles, find_entry
from .options import Classify

_log = logging.getLogger("osucaffe")


def run(options: Classify) -> None:
    """Classify each image."""
    with sharding.joined(options) as (device, job):
        _classify(replace(options, device=device), job)


def _classify(options: Classify, job: Job) -> None:
    paths = list(find_files(options.images))
    models = loading.read_weights(options.weights)
    with naming(options.model):
        net = _make_net(options, len(paths), lambda _: stream)
    trained = find_preprocessing(models[0][1], options.weights, next(iter(net.inputs), ""))
    loading.load_weights(net, models, strict=options.strict)
    entry = find_entry(net, trained, options)
    rows, *extents = net.blobs[net.inputs[0]].shape
    crops = _crops(options)
    size = rows // crops
    files = ImageFiles(
        paths, entry, loading.bad_records(options.skip_bad), oversample=options.entry.oversample
    )
    readers = options.device.threads or usable_cores()
    stream = files.stream((size, crops, *extents), readers, net.backend)
    stream.split(job.rank, job.size)
    batches = [range(len(paths))[start : start + size] for start in range(0, len(paths), size)]
    classified = _Classified(options, net.blobs[net.outputs[0]].data.count // rows)
    start = time.monotonic()
    with contextlib.closing(stream):
        outputs = sharding.outputs(net, job, len(batches), lambda: files.bad.skipped)
        for batch, (values, skipped) in zip(batches, outputs, strict=not job.rank):
            scores = values[: net.blobs[net.outputs[0]].data.count].reshape(rows, -1)
            scores = scores[: len(batch) * crops].reshape(len(batch), crops, -1).mean(axis=1)
            good = [at for at, index in enumerate(batch) if index not in skipped]
            classified.add([paths[batch[at]] for at in good], scores[good])
    if job.rank:
        return
    if len(batches) > 1:
        _log.info("All %d images: %.3f s", len(paths), time.monotonic() - start)
    classified.finish(len(paths))
    if options.explain:
        explainer = Explainer(net)
        make_folder(Path(options.explain))
        for number, path in enumerate(classified.paths):
            name = f"{number:05d}_{Path(path).stem}.png"
            picture = explainer.picture(entry.enter(path, False)[0])
            save_image(picture, Path(options.explain) / name)
        output.tell(options, f"wrote {len(classified.paths):,} pictures to {options.explain}")


class _Classified:
    """The images and their most likely labels, which are printed unless a document is to be."""

    def __init__(self, options: Classify, classes: int) -> None:
        self._args = options
        folder = Path(options.data) / LABELS if options.data else options.model
        self._labels = class_names([folder], classes, options.labels)
        self._result = Predictions.none(classes)
        self.paths: list[str] = []
        self._shown: list[list[tuple[str, float]]] = []
        self._true: list[str | None] = []
        self._classes: dict[str, str | None] = {}
        """The class that files in a folder are of."""

    def add(self, paths: list[str], scores: np.ndarray) -> None:
        """Those of a batch."""
        true = [self._true_class(os.path.dirname(path)) for path in paths]
        rows = [at for at, name in enumerate(true) if name]
        labels = [self._labels.index(name) for name in true if name]
        self._result.add(scores[rows], np.array(labels, int))
        self.paths += paths
        self._true += true
        lines = []
        for path, row, order in zip(paths, scores, _best(scores, self._args.top), strict=True):
            self._shown.append([(self._labels[index], float(row[index])) for index in order])
            lines += [path, *(f"  {value:.4f}  {label}" for label, value in self._shown[-1])]
        if lines and not self._args.json:
            print("\n".join(lines))  # at once: readers wait while lines are written

    def _true_class(self, inside: str) -> str | None:
        """The class whose name the folder of a file has below the one given, or that one itself."""
        if inside not in self._classes:
            self._classes[inside] = self._named_class(Path(inside))
        return self._classes[inside]

    def _named_class(self, inside: Path) -> str | None:
        for folder in self._args.images:
            if Path(folder).is_dir() and inside.is_relative_to(folder):
                names = [*inside.relative_to(folder).parts[:1], Path(folder).resolve().name]
                return next((name for name in names if name in self._labels), None)
        return None

    def finish(self, count: int) -> None:
        """Print how many of `count` images were right, if their folders have names of classes, or
        the document; and draw the picture, if requested. UserError if there are none."""
        options, shown = self._args, zip(self.paths, self._true, self._shown, strict=True)
        if not self.paths:
            raise UserError(f"none of {count:,} images can be read")
        if options.json:
            output.print_json(
                [
                    {"image": path, "class": true, "labels": [_entry(*pair) for pair in best]}
                    for path, true, best in shown
                ]
            )
        elif self._result.total:
            print(self._result.text(self._labels, "images"))
        if len(self.paths) < count:
            output.tell(options, f"{len(self.paths):,} of {count:,} images; the others are bad")
        if options.picture:
            images = [load_image(path) for path in self.paths]
            _draw(self.paths, images, self._shown, options.picture)
            output.tell(options, f"wrote {options.picture}")


def _entry(label: str, score: float) -> dict[str, Any]:
    return {"label": label, "score": score}


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    """The indices of the largest scores of each row, the largest first: sorting all of them takes
    longer than computing them."""
    count = min(count, scores.shape[1])
    indices = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(scores, indices, axis=1), axis=1, kind="stable")
    return np.take_along_axis(indices, order, axis=1)


def _make_net(options: Classify, images: int, inputs: Callable[[Any], Inputs]) -> Net:
    """The net, with its batches as input. If its batch size is inefficiently small, and there are
    enough images, it gets a larger one, if its layers allow it."""
    param, backend = read_net(options.model), loading.make_backend(options.device)
    config = DataConfig(inputs=inputs)

    def make(rows: int | None = None) -> Net:
        given = param
        if rows is not None:
            given = type(param)()
            given.CopyFrom(param)
            (shape,) = _input_shapes(given)
            shape.dim[0] = rows
        made = Net(given, phase="TEST", backend=backend, inference=True, data_config=config)
        if not made.outputs:
            raise UserError("a net to classify with has an output")
        if rows is not None and made.blobs[made.outputs[0]].shape[:1] != (rows,):
            raise UserError(f'its output "{made.outputs[0]}" has no row for each of {rows} images')
        return made

    shapes = _input_shapes(param)
    if len(shapes) != 1 or not shapes[0].dim:
        return make()
    crops, declared, worth = _crops(options), shapes[0].dim[0], BATCH[backend.name]
    rows = options.batch or (max(declared, worth) if worth <= images * crops else declared)
    rows = max(1, rows // crops) * crops
    try:
        return make(None if rows == declared else rows)
    except UserError as error:
        if options.batch or rows == declared or declared % crops:
            raise
        _log.info("The net takes %d images at a time: %s", declared, error)
    return make()


def _crops(options: Classify) -> int:
    """How many parts of an image enter the net."""
    return 10 if options.entry.oversample else 1


def _input_shapes(param: NetParameter) -> list[Any]:
    """The shapes of a net's inputs."""
    return [shape for layer in param.layer for shape in layer.input_param.shape]


def _draw(
    paths: list[str],
    images: list[np.ndarray],
    shown: list[list[tuple[str, float]]],
    picture: str,
) -> None:
    """Draw each image with its best labels as bars next to it."""
    plt = plots.pyplot()
    figure, axes = plt.subplots(
        len(images),
        2,
        squeeze=False,
        figsize=(9, 0.4 + 2.6 * len(images)),
        width_ratios=[1, 1.5],
        layout="constrained",
    )
    for (left, right), path, image, best in zip(axes, paths, images, shown, strict=True):
        grey = image.shape[2] == 1
        left.imshow(image[:, :, 0] if grey else image, cmap="gray" if grey else None)
        left.set_title(Path(path).name, fontsize=10)
        left.axis("off")
        bars_at = range(len(best))
        scores = [score for _, score in best]
        bars = right.barh(bars_at, scores, color=COLOURS[0], height=0.62)
        bars[0].set_color(COLOURS[1])
        right.bar_label(bars, [f" {score:.3f}" for score in scores], fontsize=9)
        right.set_yticks(bars_at, [short(label, 32) for label, _ in best], fontsize=9)
        right.invert_yaxis()
        right.set_xlim(min(0, *scores), max(1, *scores) * 1.12 if scores else 1)
        right.spines[["top", "right", "left"]].set_visible(False)
        right.tick_params(axis="y", length=0)
    plots.save(figure, picture)
    plt.close(figure)
