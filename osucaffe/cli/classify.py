"""Say what is in images: the most likely labels, and a picture with bars if wanted.

  osucaffe classify --model deploy.prototxt --weights trained.caffemodel \\
      --mean imagenet_mean.binaryproto --labels synset_words.txt --picture cat.png cat.jpg

Images enter the net as they did in training: blue first and 0..255, less a mean, times a scale, the
middle part where training cropped. That is what the transform_param of the data layer says: the
one in the prototxt that --trained_with names, else in the weights, which hold the net that was
trained. Options override each of it (--raw_scale comes before the mean, --input_scale behind it).
The log says what was done. Nets with one input channel get grey images.

Photographs enter as the records of `osucaffe data folder` did when the net was tested, where
`osucaffe new` wrote beside the model how these were made (or --data names their folder): the scores
are the same. Names of labels are found there, too. Images are turned as their EXIF data say."""

from __future__ import annotations

import argparse
import itertools
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from . import json_output, options, sharing
from .classify_picture import draw

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy as np

    from ..comm.job import Job
    from ..pycaffe import Classifier
    from .photo_input import PhotoInput


def _numbers(text: str) -> list[float]:
    return [float(part) for part in options.names(text)]


def _whole(text: str) -> list[int]:
    return [int(part) for part in options.names(text)]


def _extents(text: str) -> list[int]:
    if len(extents := _whole(text)) != 2 or min(extents) < 1:
        raise argparse.ArgumentTypeError(f"must be height,width, not {text!r}")
    return extents


# argparse names them in its messages.
_numbers.__name__ = _whole.__name__ = _extents.__name__ = "list of numbers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="image files, or folders")
    parser.add_argument("--model", metavar="FILE", required=True, help="the net's prototxt")
    parser.add_argument("--weights", metavar="FILE", required=True, help="the trained model")
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="the names of the classes, one a line (default: labels.txt beside the model)",
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="what osucaffe data folder made of the photographs of training (default: as the files "
        "beside the model say)",
    )
    parser.add_argument(
        "--top", metavar="N", type=options.positive, default=5, help="how many labels (default: 5)"
    )
    parser.add_argument("--picture", metavar="FILE", help="draw images and bars: .png, .svg, .pdf")
    json_output.add_json(parser)
    options.add_strict(parser)
    group = parser.add_argument_group(
        "how images enter the net", "default: as they did in training, as far as that is known"
    )
    group.add_argument(
        "--trained_with",
        metavar="FILE",
        help="the prototxt that the net was trained with (default: what the weights hold of it)",
    )
    group.add_argument(
        "--mean", metavar="M", help="a .binaryproto or .npy file, or values: 104,117,123; 0: none"
    )
    group.add_argument(
        "--image_dims", metavar="H,W", type=_extents, help="scale to this, then crop"
    )
    group.add_argument("--oversample", action="store_true", help="average over ten crops")
    group.add_argument(
        "--raw_scale",
        metavar="X",
        type=float,
        help="what white is, before the mean (default: 255)",
    )
    group.add_argument("--input_scale", metavar="X", type=float, help="factor behind the mean")
    group.add_argument(
        "--channel_swap",
        metavar="C",
        type=_whole,
        help="which of red, green, blue (0,1,2) each channel is (default: 2,1,0)",
    )
    sharing.add_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Classify each image."""
    with sharing.joined(args) as (args, job):
        _classify(args, job)


def _classify(args: argparse.Namespace, job: Job) -> None:
    import numpy as np

    from ..errors import UserError, naming
    from ..pycaffe import Classifier, io, settings
    from .photo_input import find_files, load_upright, read_names

    settings.use(options.make_backend(args))
    with naming(args.model):
        classifier = Classifier(args.model, args.weights, args.image_dims)
        if not classifier.outputs:
            raise UserError("a net to classify with has an output")
    options.check_strict(classifier.mismatch, args)
    load = partial(io.load_image, color=classifier.preprocess.channels > 1)
    photos = _set_input(classifier, args)
    paths = list(find_files(args.images))
    labels: list[str] = []
    shown: list[list[tuple[str, float]]] = []

    def enter(path: str) -> np.ndarray:
        if photos:
            return photos.enter(path, args.oversample)
        return classifier.entered(load_upright(path, load), oversample=args.oversample)

    size = max(1, classifier.blobs[classifier.inputs[0]].shape[0] // (10 if args.oversample else 1))
    batches = [paths[start : start + size] for start in range(0, len(paths), size)]
    images = _ahead(enter, batches[job.rank :: job.size], args.threads)

    def score(_: int) -> np.ndarray:
        entered = next(images)
        return classifier.score(entered, oversample=args.oversample).reshape(len(entered), -1)

    found = sharing.in_turn(job, len(batches), score)
    for batch, scores in zip(batches, found, strict=not job.rank):
        labels = labels or read_names(args, scores.shape[1])
        best = np.argsort(-scores, axis=1)[:, : args.top]
        for path, row, order in zip(batch, scores, best, strict=True):
            shown.append([(labels[index], float(row[index])) for index in order])
            if args.json:
                continue
            print(path)
            for label, value in shown[-1]:
                print(f"  {value:.4f}  {label}")
    images.close()
    if args.json and not job.rank:
        json_output.print_json(
            [
                {"image": path, "labels": [{"label": each, "score": score} for each, score in best]}
                for path, best in zip(paths, shown, strict=True)
            ]
        )
    if args.picture and not job.rank:
        pictures = [load_upright(path, load) for path in paths]
        draw(paths, pictures, shown, args.picture)
        json_output.tell(args, f"wrote {args.picture}")


def _ahead(
    enter: Callable[[str], np.ndarray], batches: list[list[str]], threads: int | None
) -> Generator[list[np.ndarray], None, None]:
    """For each batch of files the images that threads read and transform, some batches ahead."""
    from concurrent.futures import ThreadPoolExecutor

    from ..backends.cores import usable_cores

    threads = threads or usable_cores()
    rest = itertools.chain(*batches)
    waiting: deque[Future[np.ndarray]] = deque()
    with ThreadPoolExecutor(threads) as pool:

        def begin(count: int) -> None:
            waiting.extend(pool.submit(enter, path) for path in itertools.islice(rest, count))

        begin(2 * (threads + max(map(len, batches), default=0)))
        try:
            for batch in batches:
                entered = [waiting.popleft().result() for _ in batch]
                begin(len(batch))
                yield entered
        finally:
            for future in waiting:
                future.cancel()


def _set_input(classifier: Classifier, args: argparse.Namespace) -> PhotoInput | None:
    """Let images enter as the options and the training say, and tell it. Returns what lets
    photographs enter, where they do so as the records of training did."""
    import logging

    from ..data.preprocessing import Preprocessing, find_preprocessing
    from ..errors import UserError
    from ..proto import read_net
    from .photo_input import find_photos_input

    logger = logging.getLogger("osucaffe")
    entry, trained = classifier.preprocess, classifier.trained
    if args.trained_with:
        trained = find_preprocessing(read_net(args.trained_with), args.trained_with, entry.name)
        if trained is None:
            raise UserError(
                f"--trained_with {args.trained_with}: has no layer that reads images, or several "
                "that differ: give the prototxt that the net was trained with"
            )
    if photos := find_photos_input(args, trained, entry):
        return photos
    given = [args.mean, args.input_scale, args.raw_scale]
    if trained is None and all(each is None for each in given):
        logger.warning(
            "Nothing is known of how images entered this net in training (%s holds no layer that "
            "reads images): give --trained_with train_val.prototxt, or --mean and --input_scale",
            args.weights,
        )
    if args.channel_swap and sorted(args.channel_swap) != list(range(entry.channels)):
        swap = ",".join(map(str, args.channel_swap))
        numbers = ", ".join(map(str, range(entry.channels)))
        raise UserError(f"--channel_swap {swap}: the net's channels are {numbers}, each once")
    try:
        extents = entry.set_as(
            trained or Preprocessing(),
            mean=_read_mean(args.mean) if args.mean else None,
            input_scale=args.input_scale,
            raw_scale=args.raw_scale,
            channel_swap=args.channel_swap,
        )
    except ValueError as error:
        raise UserError(f"--mean {args.mean}: {error}") from None
    classifier.scale_as_trained(extents)
    scaled, inner = ("x".join(map(str, each)) for each in (classifier.image_dims, entry.extents))
    part = "ten parts" if args.oversample else "the middle"
    crop = f", of which {part} of {inner}" if scaled != inner else ""
    origin = f" (trained: {trained.origin})" if trained else ""
    logger.info("Images are scaled to %s%s; %s%s", scaled, crop, entry, origin)
    return None


def _read_mean(given: str) -> np.ndarray:
    """What --mean gives: a value for each channel, or for all, or an image."""
    import numpy as np

    from ..errors import UserError
    from ..proto import read_mean

    if not Path(given).exists():
        try:
            return np.array(_numbers(given))
        except ValueError:
            raise UserError(f"--mean {given}: there is no such file, and it is no list") from None
    if Path(given).suffix == ".npy":
        try:
            return np.load(given)
        except (OSError, ValueError):
            raise UserError(f"--mean {given}: not a whole .npy file") from None
    return read_mean(given)
