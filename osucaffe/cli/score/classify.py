"""Owns `osucaffe classify`: the most likely labels of images, as text, JSON or a picture."""

from __future__ import annotations

import argparse
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...backends.cores import usable_cores
from ...comm.job.job import Job
from ...data.ahead.pipeline import Buffer
from ...data.config import DataConfig
from ...data.pictures.preprocessing import find_preprocessing
from ...data.sets.photo_set import LABELS, read_labels
from ...errors import UserError, naming
from ...net import Net
from ...proto import read_net
from ...proto.caffe_pb2 import NetParameter
from .. import options, output, plots
from ..images import find_files, load_upright
from ..output import short
from . import sharding
from .classify_input import ImageFiles, find_entry

_log = logging.getLogger("osucaffe")
_WORTH = {"cpu": 16, "cuda": 64}
"""Batch sizes from which a net on each backend is about as fast as with any."""


def run(args: argparse.Namespace) -> None:
    """Classify each image."""
    with sharding.joined(args) as (args, job):
        _classify(args, job)


def _classify(args: argparse.Namespace, job: Job) -> None:
    paths = list(find_files(args.images))
    models = options.read_weights(args.weights)
    with naming(args.model):
        net = _make_net(args, len(paths), lambda: stream.next())
    trained = find_preprocessing(models[0][1], args.weights, next(iter(net.inputs), ""))
    options.load_weights(net, models, args)
    entry = find_entry(net, trained, args)
    rows, *extents = net.blobs[net.inputs[0]].shape
    crops = _crops(args)
    size = rows // crops
    files = ImageFiles(paths, entry, oversample=args.oversample)
    readers = args.threads or usable_cores()
    stream = files.stream((size, crops, *extents), readers, net.backend)
    stream.split(job.rank, job.size)
    batches = [paths[start : start + size] for start in range(0, len(paths), size)]
    labels: list[str] = []
    shown: list[list[tuple[str, float]]] = []
    start = time.monotonic()
    with contextlib.closing(stream):
        outputs = sharding.outputs(net, job, len(batches), lambda: None)
        for batch, (values, _) in zip(batches, outputs, strict=not job.rank):
            scores = values[: net.blobs[net.outputs[0]].data.count].reshape(rows, -1)
            scores = scores[: len(batch) * crops].reshape(len(batch), crops, -1).mean(axis=1)
            labels = labels or _read_names(args, scores.shape[1])
            for path, row, order in zip(batch, scores, _best(scores, args.top), strict=True):
                shown.append([(labels[index], float(row[index])) for index in order])
                if args.json:
                    continue
                print(path)
                for label, value in shown[-1]:
                    print(f"  {value:.4f}  {label}")
    if job.rank:
        return
    if len(batches) > 1:
        _log.info("All %d images: %.3f s", len(paths), time.monotonic() - start)
    _finish(args, paths, shown)


def _read_names(args: argparse.Namespace, count: int) -> list[str]:
    """The names of the classes: from --labels, else those in the folder of --data or next to the
    model, if they fit; else numbers."""
    if args.labels is not None:
        labels = read_labels(Path(args.labels))
        if len(labels) != count:
            classes = f"{count} classes of the net"
            raise UserError(f"{args.labels}: has {len(labels)} labels for {classes}")
        return labels
    numbers = [f"class {index}" for index in range(count)]
    path = Path(args.data or Path(args.model).parent) / LABELS
    if not path.is_file():
        return numbers
    labels = read_labels(path)
    if len(labels) != count:
        _log.warning("%s: ignored: %d names for %d classes", path, len(labels), count)
        return numbers
    _log.info("Names of classes: %s", path)
    return labels


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    """The indices of the largest scores of each row, the largest first: sorting all of them takes
    longer than computing them."""
    count = min(count, scores.shape[1])
    indices = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(scores, indices, axis=1), axis=1, kind="stable")
    return np.take_along_axis(indices, order, axis=1)


def _make_net(
    args: argparse.Namespace, images: int, following: Callable[[], Sequence[Buffer]]
) -> Net:
    """The net, with its batches as input. If its batch size is inefficiently small, and there are
    enough images, it gets a larger one, if its layers allow it."""
    param, backend = read_net(args.model), options.make_backend(args)
    config = DataConfig(inputs=following)

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
    crops, declared, worth = _crops(args), shapes[0].dim[0], _WORTH[backend.name]
    rows = args.batch or (max(declared, worth) if worth <= images * crops else declared)
    rows = max(1, rows // crops) * crops
    try:
        return make(None if rows == declared else rows)
    except UserError as error:
        if args.batch or rows == declared or declared % crops:
            raise
        _log.info("The net takes %d images at a time: %s", declared, error)
    return make()


def _crops(args: argparse.Namespace) -> int:
    """How many parts of an image enter the net."""
    return 10 if args.oversample else 1


def _input_shapes(param: NetParameter) -> list[Any]:
    """The shapes of a net's inputs."""
    return [shape for layer in param.layer for shape in layer.input_param.shape]


def _finish(
    args: argparse.Namespace, paths: list[str], shown: list[list[tuple[str, float]]]
) -> None:
    """Print the JSON and draw the picture, if requested."""
    if args.json:
        output.print_json(
            [
                {"image": path, "labels": [{"label": name, "score": score} for name, score in best]}
                for path, best in zip(paths, shown, strict=True)
            ]
        )
    if args.picture:
        _draw(paths, [load_upright(path) for path in paths], shown, args.picture)
        output.tell(args, f"wrote {args.picture}")


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
        bars = right.barh(bars_at, scores, color=plots.COLOURS[0], height=0.62)
        bars[0].set_color(plots.COLOURS[1])
        right.bar_label(bars, [f" {score:.3f}" for score in scores], fontsize=9)
        right.set_yticks(bars_at, [short(label, 32) for label, _ in best], fontsize=9)
        right.invert_yaxis()
        right.set_xlim(min(0, *scores), max(1, *scores) * 1.12 if scores else 1)
        right.spines[["top", "right", "left"]].set_visible(False)
        right.tick_params(axis="y", length=0)
    plots.save(figure, picture)
    plt.close(figure)
