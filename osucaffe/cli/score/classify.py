"""Classify images: print the most likely labels, or draw a picture with bars.

  osucaffe classify --model deploy.prototxt --weights trained.caffemodel \\
      --mean imagenet_mean.binaryproto --labels synset_words.txt --picture cat.png cat.jpg

Images are preprocessed as in training: channels in the order blue, green, red, values 0..255, minus
the mean, times the scale, cropped to the middle. The transform_param of the data layer says which
mean, scale and crop: that of the prototxt given by --trained_with, or else of the net stored in the
weights file. Options override each of them (--raw_scale is applied before the mean, --input_scale
after it), and the log says what was done. Nets with one input channel get grey images.

For models that `osucaffe new` wrote, the files next to the model (or in --data) say how
`osucaffe data folder` made the training records: photographs then get exactly the scores that
`osucaffe test` gives them, and labels their names. EXIF orientation is applied.

For folders of thousands of images, --threads workers (by default one for each core) read and scale
images ahead of the net; more than 4 are processes. They set the pace: a GPU keeps up with dozens
of cores. --gpu all divides the images among all GPUs; --precision bf16 is faster than the default.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import json_output, options
from . import sharding
from .classify_picture import draw

if TYPE_CHECKING:
    import numpy as np

    from ...comm.job.job import Job
    from ...data.ahead.pipeline import Buffer
    from ...net import Net
    from ...proto.caffe_pb2 import NetParameter

_log = logging.getLogger("osucaffe")
_WORTH = {"cpu": 16, "cuda": 64}
"""Images at a time with which a net on such a backend is about as fast as with any number."""


def _whole(text: str) -> list[int]:
    return [int(part) for part in options.names(text)]


def _extents(text: str) -> list[int]:
    if len(extents := _whole(text)) != 2 or min(extents) < 1:
        raise argparse.ArgumentTypeError(f"must be height,width, not {text!r}")
    return extents


# argparse names them in its messages.
_whole.__name__ = _extents.__name__ = "list of numbers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="image files, or folders")
    parser.add_argument("--model", metavar="FILE", required=True, help="the net's prototxt")
    parser.add_argument("--weights", metavar="FILE", required=True, help="the trained model")
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="names of the classes, one per line (default: labels.txt next to the model)",
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="the output of osucaffe data folder that the net was trained on (default: what the "
        "files next to the model say)",
    )
    parser.add_argument(
        "--top",
        metavar="N",
        type=options.positive,
        default=5,
        help="how many labels to print (default: 5)",
    )
    parser.add_argument(
        "--picture", metavar="FILE", help="draw the images with bars to a .png, .svg or .pdf file"
    )
    parser.add_argument(
        "--batch",
        metavar="N",
        type=options.positive,
        help="images (or crops of them) in a batch (default: the model's; for larger folders at "
        "least 16, and 64 on a GPU)",
    )
    json_output.add_json(parser)
    options.add_strict(parser)
    group = parser.add_argument_group(
        "how images enter the net", "By default as in training, as far as that is known."
    )
    group.add_argument(
        "--trained_with",
        metavar="FILE",
        help="the prototxt that the net was trained with (default: the one in the weights file)",
    )
    group.add_argument(
        "--mean", metavar="M", help="a .binaryproto or .npy file, or values: 104,117,123; 0: none"
    )
    group.add_argument(
        "--image_dims", metavar="H,W", type=_extents, help="scale images to this size, then crop"
    )
    group.add_argument("--oversample", action="store_true", help="average over ten crops")
    group.add_argument(
        "--raw_scale",
        metavar="X",
        type=float,
        help="the value of white, before the mean is subtracted (default: 255)",
    )
    group.add_argument(
        "--input_scale", metavar="X", type=float, help="factor applied after the mean is subtracted"
    )
    group.add_argument(
        "--channel_swap",
        metavar="C",
        type=_whole,
        help="the order of red, green and blue (0,1,2) in the channels (default: 2,1,0)",
    )
    sharding.add_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Classify each image."""
    with sharding.joined(args) as (args, job):
        _classify(args, job)


def _classify(args: argparse.Namespace, job: Job) -> None:
    from ...backends.cores import usable_cores
    from ...data.pictures.preprocessing import find_preprocessing
    from ...errors import naming
    from ..data.photo_input import find_files, read_names
    from .classify_input import ImageFiles, find_entry

    paths = list(find_files(args.images))
    models = options.read_weights([args.weights])
    with naming(args.model):
        net = _make_net(args, len(paths), lambda: stream.next())
    trained = find_preprocessing(models[0][1], args.weights, next(iter(net.inputs), ""))
    options.load_weights(net, models, args)
    entry = find_entry(net, trained, args)
    rows, *extents = net.blobs[net.inputs[0]].shape
    crops = _crops(args)
    size = rows // crops
    files = ImageFiles(paths, entry, oversample=args.oversample)
    stream = files.stream((size, crops, *extents), args.threads or usable_cores())
    stream.split(job.rank, job.size)
    batches = [paths[start : start + size] for start in range(0, len(paths), size)]
    labels: list[str] = []
    shown: list[list[tuple[str, float]]] = []
    start = time.monotonic()
    with contextlib.closing(stream):
        found = sharding.outputs(net, job, len(batches), lambda: None)
        for batch, (values, _) in zip(batches, found, strict=not job.rank):
            scores = values[: net.blobs[net.outputs[0]].data.count].reshape(rows, -1)
            scores = scores[: len(batch) * crops].reshape(len(batch), crops, -1).mean(axis=1)
            labels = labels or read_names(args, scores.shape[1])
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


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    """Which scores of each row are the largest ones, the largest first: to sort all takes longer
    than what makes them."""
    import numpy as np

    count = min(count, scores.shape[1])
    found = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(scores, found, axis=1), axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)


def _make_net(
    args: argparse.Namespace, images: int, following: Callable[[], Sequence[Buffer]]
) -> Net:
    """The net, which asks for its batches. Where its batch size is less than what is worth a pass,
    and there are as many images, it gets that one, if its layers can have it."""
    from ...data.config import DataConfig
    from ...errors import UserError
    from ...net import Net
    from ...proto import read_net

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
    crops, own, worth = _crops(args), shapes[0].dim[0], _WORTH[backend.name]
    rows = args.batch or (max(own, worth) if worth <= images * crops else own)
    rows = max(1, rows // crops) * crops
    try:
        return make(None if rows == own else rows)
    except UserError as error:
        if args.batch or rows == own or own % crops:
            raise
        _log.info("The net takes %d images at a time: %s", own, error)
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
    """Print the JSON and draw the picture, where they are asked for."""
    if args.json:
        json_output.print_json(
            [
                {"image": path, "labels": [{"label": each, "score": score} for each, score in best]}
                for path, best in zip(paths, shown, strict=True)
            ]
        )
    if args.picture:
        from ..data.photo_input import load_upright

        draw(paths, [load_upright(path) for path in paths], shown, args.picture)
        json_output.tell(args, f"wrote {args.picture}")
