"""The files that `osucaffe new` writes: net, solver, and the files that classify needs."""

from __future__ import annotations

import logging
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...backends.cpu import Cpu
from ...backends.tensor import Shape
from ...cli.output import make_folder
from ...data.pictures.preprocessing import Preprocessing, find_preprocessing
from ...data.sets.photo_set import LABELS, MEAN, PhotoSet, find_settings
from ...errors import UserError
from ...files import read_bytes, write_bytes
from ...graph.weights import misfits
from ...proto import (
    AnyWeights,
    NetParameter,
    SolverParameter,
    caffe_pb2,
    format_text,
    read_mean,
    write_mean,
    write_weights,
)
from ...solvers.snapshots.snapshot import named
from . import adapt
from .head import train_head

logger = logging.getLogger("osucaffe")

_FILES = ("train_val.prototxt", "deploy.prototxt", "solver.prototxt")
_IMAGENET = (104.0, 117.0, 123.0)
"""The mean colour of ImageNet, blue first, as in Caffe's model files."""
_IMAGENETS_FILES = ("imagenet", "ilsvrc")
"""A name of a mean file with one of these stands for ImageNet's mean image."""
_EPOCHS, _EPOCHS_TUNED = 60, 20
_RATE, _RATE_TUNED = 0.01, 0.001
"""The most that batches of some ten photographs bear; of layers that have learned already: what the
large nets' examples have, and no more than the net learned with."""
_ITERATIONS_TUNED = 300
"""The least: an epoch of a hundred photographs is a few iterations."""
_AUGMENTATION = caffe_pb2.AugmentationParameter(rotation=8, zoom=0.15, colour=0.2)
_LARGEST = 64
"""Photographs of a batch when it is tested."""


@dataclass(frozen=True)
class Start:
    """What the new net is made from.

    net, file: of the model. extent: width and height that it takes, 0 for any. solver: of the
    model. weights: those that it begins with, and their file.
    """

    name: str
    net: NetParameter
    file: str
    extent: int
    solver: SolverParameter | None = None
    weights: tuple[str, AnyWeights] | None = None


def write_files(
    start: Start,
    data: PhotoSet,
    out: Path,
    *,
    batch: int,
    epochs: int | None,
    augment: bool,
    head: bool,
) -> str:
    """Write them to a folder; return the command that trains the net. head: see `train_head`."""
    if stands := [out / name for name in _FILES if (out / name).exists()]:
        raise UserError(f"{stands[0]}: already exists: give another folder with --out")
    crop = _crop(start, data)
    net = NetParameter()
    net.CopyFrom(start.net)
    used = {layer.name for layer in start.weights[1].layer} if start.weights else None
    names = adapt.set_classes(net, len(data.classes), used)
    for layer in net.layer if start.weights else ():
        if layer.type == "BatchNorm":  # batches of a few photographs would tell other statistics
            layer.batch_norm_param.use_global_stats = True
    for layer in adapt.classifiers(net) if start.weights else ():
        # Random weights of what has learned large values make large losses, which undo it.
        dense = layer.type == "InnerProduct"
        filler = (layer.inner_product_param if dense else layer.convolution_param).weight_filler
        filler.CopyFrom(caffe_pb2.FillerParameter(type="constant"))
    make_folder(out)
    transform = _transform(start, data, out)
    transform.crop_size = crop if crop != data.size else 0
    if augment:
        transform.augmentation_param.CopyFrom(_AUGMENTATION)
    batches = [min(batch, data.train), _test_batch(data.val)]
    sources = [str(data.folder / "train_lmdb"), str(data.folder / "val_lmdb")]
    if data.test:
        batches.append(_test_batch(data.test))
        sources.append(str(data.folder / "test_lmdb"))
    extent = crop or data.size
    training = adapt.for_training(net, adapt.Records(sources, batches, transform))
    renewed: list[str] = []
    if start.weights and used:
        renewed = _renew(training, start.weights, (batches[0], 3, extent, extent), used)
        names += renewed
    deploy = adapt.for_prediction(training, (1, 3, extent, extent))
    solver = _solver(start, data, out, batches, epochs)
    made = f"# Made of {'/'.join(Path(start.file).parts[-2:])} by osucaffe new"
    new = ", ".join(names)
    note = f"; new: {new}; classes: {LABELS}" if start.weights else ""
    _write(out / _FILES[0], f"{made}{note}.", training)
    _write(out / _FILES[1], f"{made}: for prediction.", deploy)
    tested = batches[1] * solver.test_iter[0]
    twice = "" if tested == data.val else f" ({tested - data.val} of them twice)"
    _write(
        out / _FILES[2],
        f"# {data.train} photographs in batches of {batches[0]}, {data.val} to test{twice}.",
        solver,
    )
    write_bytes(out / LABELS, read_bytes(data.folder / LABELS))
    if settings := find_settings(data.folder):
        settings.write(out)
    command = ["osucaffe", "train", "--solver", str(out / _FILES[2])]
    if start.weights:
        begin = start.weights[0]
        begun = train_head(training, start.weights, data) if head and not renewed else None
        if begun is not None:
            begin = named(solver, 0).model
            write_weights(begin, begun)
        command += ["--weights", begin]
    return shlex.join(command)


def _renew(
    net: NetParameter, weights: tuple[str, AnyWeights], shape: Shape, used: set[str]
) -> list[str]:
    """Reinitialize layers whose weights have other shapes in the file, and report it."""
    image, label = next(layer.top for layer in net.layer if not layer.bottom)
    entering = {image: shape, label: shape[:1]}
    shapes_of = misfits(net, weights[1], entering, Cpu())
    for name, shapes in shapes_of.items():
        logger.warning(
            'layer "%s": %s, %s: it is trained from scratch, and learns faster',
            name,
            shapes,
            weights[0],
        )
    return adapt.begin_anew(net, shapes_of, used)


def _write(path: Path, comment: str, message: NetParameter | SolverParameter) -> None:
    write_bytes(path, f"{comment}\n{format_text(message)}".encode())


def _crop(start: Start, data: PhotoSet) -> int:
    """The width and height that enter the net, cut out of the records."""
    size = start.extent
    if not size and start.weights:
        return data.size
    size = size or data.size - data.size // 8  # parts at random are photographs the more
    if data.size < size:
        raise UserError(
            f"{data.folder}: the photographs are {data.size} pixels wide there, but the net takes "
            f"{size}: make them with osucaffe data folder --size {size * 8 // 7}"
        )
    if data.size > 1.5 * size:
        logger.warning(
            "%s: photos are %d pixels wide, the net sees crops of %d: --size %d would show more",
            data.folder, data.size, size, size * 8 // 7,
        )  # fmt: skip
    return size


def _transform(start: Start, data: PhotoSet, out: Path) -> caffe_pb2.TransformationParameter:
    """Mean, scale and mirror of the data layers; a mean image goes to the folder."""
    known = find_preprocessing(start.net, start.file)
    if start.weights:
        file, weights = start.weights
        known = find_preprocessing(weights, file) or known
    if known is None:
        logger.warning(
            "%s: how images were preprocessed for this net is unknown: ImageNet's mean colour is "
            "subtracted; if that is wrong, change transform_param in %s",
            start.file, out / _FILES[0],
        )  # fmt: skip
        known = Preprocessing(mean_values=_IMAGENET)
    transform = caffe_pb2.TransformationParameter(mirror=True)
    if known.scale != 1:
        transform.scale = known.scale
    if known.mean_file:
        _set_mean(transform, known, start, data, out)
    else:
        transform.mean_value.extend(known.mean_values)
    return transform


def _set_mean(
    transform: caffe_pb2.TransformationParameter,
    known: Preprocessing,
    start: Start,
    data: PhotoSet,
    out: Path,
) -> None:
    """The mean that the weights were trained with, if available, or that of the data."""
    mean = read_mean(data.folder / MEAN)
    if start.weights:
        try:
            trained = known.mean()
        except UserError:
            name = Path(known.mean_file).name.lower()
            if any(part in name for part in _IMAGENETS_FILES):
                transform.mean_value.extend(_IMAGENET)
                return
            logger.warning(
                "%s, the mean subtracted in training, does not exist: using that of %s",
                known.mean_file, data.folder,
            )  # fmt: skip
        else:
            assert trained is not None
            if trained.shape != mean.shape:
                transform.mean_value.extend(np.atleast_1d(trained.mean((1, 2))).tolist())
                return
            mean = trained
    write_mean(out / MEAN, mean)
    transform.mean_file = str(out / MEAN)


def _test_batch(records: int) -> int:
    """A batch size that divides the number of photographs, if there is one."""
    fitting = [size for size in range(8, _LARGEST + 1) if records % size == 0]
    return max(fitting, default=min(records, _LARGEST // 2))


def _solver(
    start: Start, data: PhotoSet, out: Path, batches: Sequence[int], epochs: int | None
) -> SolverParameter:
    """Momentum and decay of the model's solver; the rate falls to 0 at the end."""
    model = start.solver or SolverParameter(base_lr=_RATE, momentum=0.9, weight_decay=0.0005)
    rate, epoch = min(model.base_lr, _RATE), math.ceil(data.train / batches[0])
    if start.weights:
        rate = min(model.base_lr, _RATE_TUNED)
        epochs = epochs or max(_EPOCHS_TUNED, math.ceil(_ITERATIONS_TUNED / epoch))
    epochs = epochs or _EPOCHS
    solver = SolverParameter(
        net=str(out / _FILES[0]),
        test_iter=[math.ceil(data.val / batches[1])],
        test_interval=epoch * max(1, epochs // 10),
        base_lr=rate,
        lr_policy="poly",
        power=1,
        momentum=model.momentum,
        weight_decay=model.weight_decay,
        display=epoch,
        max_iter=epoch * epochs,
        snapshot=epoch * max(1, epochs // 5),
        snapshot_prefix=str(out / start.name),
        random_seed=1,
    )
    if model.type != "SGD":
        solver.type = model.type
    return solver
