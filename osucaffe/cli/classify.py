"""Say what is in images: the most likely labels, and a picture with bars if wanted.

  osucaffe classify --model deploy.prototxt --weights trained.caffemodel \\
      --mean imagenet_mean.binaryproto --labels synset_words.txt --picture cat.png cat.jpg

Images are scaled to the net's input (or to --image_dims, and cropped), given in blue-green-red
order and 0..255, less the mean, as Caffe's models expect them; --raw_scale and --channel_swap
change that. Nets with one input channel get grey images."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import options, plots

if TYPE_CHECKING:
    import numpy as np


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
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="image files")
    parser.add_argument("--model", metavar="FILE", required=True, help="the net's prototxt")
    parser.add_argument("--weights", metavar="FILE", required=True, help="the trained model")
    parser.add_argument("--labels", metavar="FILE", help="the names of the classes, one a line")
    parser.add_argument(
        "--top", metavar="N", type=options.positive, default=5, help="how many labels (default: 5)"
    )
    parser.add_argument("--picture", metavar="FILE", help="draw images and bars: .png, .svg, .pdf")
    group = parser.add_argument_group("how images enter the net")
    group.add_argument("--mean", metavar="M", help="a .binaryproto or .npy file, or 104,117,123")
    group.add_argument(
        "--image_dims", metavar="H,W", type=_extents, help="scale to this, then crop"
    )
    group.add_argument("--oversample", action="store_true", help="average over ten crops")
    group.add_argument(
        "--raw_scale",
        metavar="X",
        type=float,
        default=255,
        help="what white is, before the mean (default: 255)",
    )
    group.add_argument("--input_scale", metavar="X", type=float, help="factor behind the mean")
    group.add_argument(
        "--channel_swap",
        metavar="C",
        type=_whole,
        help="which of red, green, blue (0,1,2) each channel is (default: 2,1,0)",
    )
    options.add_device(parser)


def run(args: argparse.Namespace) -> None:
    """Classify each image."""
    import logging

    import numpy as np

    from .. import log
    from ..errors import UserError, naming

    log.start()
    logging.getLogger("osucaffe").setLevel(logging.WARNING)
    from ..pycaffe import Classifier, io, settings

    settings.use(options.make_backend(args))
    with naming(args.model):
        classifier = Classifier(
            args.model, args.weights, args.image_dims, None, args.input_scale, args.raw_scale
        )
        if not classifier.outputs:
            raise UserError("a net to classify with has an output")
    channels = classifier.blobs[classifier.inputs[0]].shape[1]
    if args.channel_swap or channels == 3:
        swap = args.channel_swap or (2, 1, 0)
        if sorted(swap) != list(range(channels)):
            given = ",".join(map(str, swap))
            numbers = ", ".join(map(str, range(channels)))
            raise UserError(f"--channel_swap {given}: the net's channels are {numbers}, each once")
        classifier.transformer.set_channel_swap(classifier.inputs[0], swap)
    if args.mean:
        _set_mean(classifier, args.mean)
    images = [io.load_image(path, color=channels > 1) for path in args.images]
    scores = classifier.predict(images, oversample=args.oversample).reshape(len(images), -1)
    labels = _read_labels(args.labels, scores.shape[1])
    best = np.argsort(-scores, axis=1)[:, : args.top]
    for path, row, order in zip(args.images, scores, best, strict=True):
        print(path)
        for index in order:
            print(f"  {row[index]:.4f}  {labels[index]}")
    if args.picture:
        shown = [
            [(labels[index], float(row[index])) for index in order]
            for row, order in zip(scores, best, strict=True)
        ]
        _draw(args.images, images, shown, args.picture)


def _set_mean(classifier: Any, given: str) -> None:
    import numpy as np

    from ..errors import UserError
    from ..proto import read_mean
    from ..pycaffe.io import resize_image

    name = classifier.inputs[0]
    if not Path(given).exists():
        try:
            mean = np.array(_numbers(given))
        except ValueError:
            raise UserError(f"--mean {given}: there is no such file, and it is no list") from None
    elif Path(given).suffix == ".npy":
        try:
            mean = np.load(given)
        except (OSError, ValueError):
            raise UserError(f"--mean {given}: not a whole .npy file") from None
    else:
        mean = read_mean(given)
    extents = tuple(classifier.crop_dims)
    if mean.ndim == 3 and mean.shape[1:] != extents:
        # Of images larger than the input: their middle part.
        margins = zip(mean.shape[1:], extents, strict=True)
        top, left = (int(max(0, (a - b) // 2)) for a, b in margins)
        mean = mean[:, top : top + int(extents[0]), left : left + int(extents[1])]
        mean = resize_image(mean.transpose(1, 2, 0), classifier.crop_dims).transpose(2, 0, 1)
    try:
        classifier.transformer.set_mean(name, mean)
    except ValueError as error:
        raise UserError(f"--mean {given}: {error}") from None


def _read_labels(path: str | None, count: int) -> list[str]:
    from ..errors import UserError, reason

    if path is None:
        return [f"class {index}" for index in range(count)]
    try:
        labels = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read the labels: {reason(error)}") from None
    labels = [label for label in labels if label.strip()]
    if len(labels) != count:
        raise UserError(f"{path}: has {len(labels)} labels for {count} classes of the net")
    return labels


def _draw(
    paths: list[str],
    images: list[np.ndarray],
    shown: list[list[tuple[str, float]]],
    picture: str,
) -> None:
    """Draw each image with its best labels as bars beside it."""
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
        places = range(len(best))
        scores = [score for _, score in best]
        bars = right.barh(places, scores, color=plots.COLOURS[0], height=0.62)
        bars[0].set_color(plots.COLOURS[1])
        right.bar_label(bars, [f" {score:.3f}" for score in scores], fontsize=9)
        right.set_yticks(places, [_short(label) for label, _ in best], fontsize=9)
        right.invert_yaxis()
        right.set_xlim(min(0, *scores), max(1, *scores) * 1.12 if scores else 1)
        right.spines[["top", "right", "left"]].set_visible(False)
        right.tick_params(axis="y", length=0)
    plots.save(figure, picture)
    plt.close(figure)


def _short(label: str, most: int = 32) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"
