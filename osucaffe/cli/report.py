"""Make a page of a training run: curves, confusions, best and worst predictions, times, settings.

  osucaffe report solver.prototxt --log logs --out report.html

The page is one file that fetches nothing. The weights are PREFIX_best.caffemodel if `train --best`
made it, else those of the newest snapshot, as the solver's snapshot_prefix says. Names of labels:
--labels, else labels.txt in the folder of the data. Batches of the first test net are scored."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from . import options

if TYPE_CHECKING:
    import numpy as np

    from ..backends.backend import Backend
    from ..proto import NetParameter, SolverParameter
    from .predictions import Prediction

_TIMED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("solver", metavar="SOLVER", help="the solver's prototxt")
    parser.add_argument(
        "--log", metavar="FILE", help="the log of the run, or the folder of train --log_dir"
    )
    parser.add_argument("--weights", metavar="FILE", help="the trained model (default: as above)")
    parser.add_argument("--labels", metavar="FILE", help="the names of the classes, one a line")
    parser.add_argument(
        "--iterations",
        metavar="N",
        type=options.positive,
        help="batches to score (default: the solver's test_iter)",
    )
    parser.add_argument(
        "--shown", metavar="N", type=options.positive, default=12, help="pictures (default: 12)"
    )
    parser.add_argument(
        "--out", metavar="FILE", default="report.html", help="the page (default: report.html)"
    )
    options.add_device(parser)


def run(args: argparse.Namespace) -> None:
    """Read, score, time, write."""
    from .. import log
    from ..files import write_bytes
    from ..net import Net
    from ..proto import format_text, read_net, read_solver, read_weights
    from ..solvers.nets import training_net
    from . import report_page as html
    from .summary import describe, short
    from .time import measure

    log.start()
    param = read_solver(args.solver)
    weights = args.weights or _weights(param, args.solver)
    learned, curves = read_weights(weights), _curves(args.log)
    backend = options.make_backend(args)
    choice = training_net(param, args.solver, read_net)
    predictions = _predictions(args, param, weights, backend)
    net: Net = choice.build(phase="TRAIN", backend=backend)
    net.load(learned, weights)
    layers = measure(net, _TIMED)
    sections = [
        ("The net", html.lines([*short(net, describe(net)), f"Weights: {weights}"])),
        ("Curves", curves),
        *predictions,
        (
            f"Time of each layer, on {'the CPU' if args.gpu is None else f'GPU {args.gpu}'}",
            html.times(
                [
                    (each.name, each.type, each.forward.milliseconds, each.backward.milliseconds)
                    for each in layers
                    if each.type != "Split"
                ]
            ),
        ),
        (
            "Settings",
            html.files([(args.solver, format_text(param)), ("the net", format_text(choice.param))]),
        ),
    ]
    title = f"{net.name or 'A net'}: {Path(args.solver).name}"
    write_bytes(args.out, html.page(title, sections).encode())
    print(f"wrote {args.out}")


def _weights(param: SolverParameter, file: str) -> str:
    """The best model of the run, else the newest. UserError without any."""
    from ..errors import UserError

    prefix = Path(param.snapshot_prefix)
    found = [*prefix.parent.glob(f"{prefix.name}_best.caffemodel*")]
    found = found or [*prefix.parent.glob(f"{prefix.name}_iter_*.caffemodel*")]
    if not param.snapshot_prefix or not found:
        raise UserError(
            f"{file}: there is no model of this run ({prefix}_best.caffemodel, "
            f"{prefix}_iter_N.caffemodel): train first, or give --weights"
        )
    return str(max(found, key=lambda path: path.stat().st_mtime_ns))


def _curves(log: str | None) -> str:
    """The charts of a log: losses, other outputs, the learning rate."""
    if not log:
        return ""
    from ..files import read_bytes
    from .parse_log import parse, series_of
    from .svg import line_chart

    path = Path(log, "osucaffe.INFO") if Path(log).is_dir() else Path(log)
    found = parse(read_bytes(path).decode(errors="replace").splitlines())
    series = series_of(found)
    losses = {name: points for name, points in series.items() if "loss" in name.lower()}
    others = {name: points for name, points in series.items() if name not in losses}
    rates = {"learning rate": [(row["NumIters"], row["LearningRate"]) for row in found.train]}
    charts = ("Loss", losses), ("Other outputs", others), ("Learning rate", rates)
    return "".join(line_chart(each, title) for title, each in charts)


def _predictions(
    args: argparse.Namespace, param: SolverParameter, weights: str, backend: Backend
) -> list[tuple[str, str]]:
    """The sections of what the first test net predicts; none where it does not classify images."""
    import logging

    from ..data.preprocessing import find_preprocessing
    from ..proto import read_net, read_weights
    from ..solvers.nets import testing_nets
    from . import report_page as html
    from .photo_input import read_names
    from .predictions import as_picture, judged, predict

    choices = testing_nets(param, args.solver, read_net)
    blobs = judged(choices[0].param) if choices else None
    images = _images(choices[0].param, blobs[1]) if blobs else None
    if blobs is None or images is None:
        logging.getLogger("osucaffe").info(
            "No test net has images with labels to hold predictions against: the page shows none"
        )
        return []
    net = choices[0].build(phase="TEST", backend=backend, inference=True, wanted=[*blobs, images])
    net.load(read_weights(weights), weights)
    found = predict(net, *blobs, images, args.iterations or param.test_iter[0], args.shown)
    entered = find_preprocessing(net.param, args.solver)
    names = read_names(
        argparse.Namespace(labels=args.labels, model=args.solver, data=_folder(net.param, images)),
        len(found.confusion),
    )

    def card(each: Prediction) -> tuple[np.ndarray, str, str]:
        second = f"{each.sure:.1%} sure"
        if each.label != each.predicted:
            second = f"is {names[each.label]} ({each.share:.1%}); {second}"
        return as_picture(each.image, entered), names[each.predicted], second

    right = f"{found.right:,} of {found.count:,} records are right: {found.right / found.count:.2%}"
    worst, best = ([card(each) for each in kind] for kind in (found.worst, found.best))
    return [
        ("Predictions", html.lines([right]) + html.matrix(found.confusion, names)),
        ("The worst predictions", html.cards(worst) if worst else ""),
        ("The best predictions", html.cards(best) if best else ""),
    ]


def _images(param: NetParameter, labels: str) -> str | None:
    """The blob that a layer brings with these labels."""
    readers = (layer for layer in param.layer if not layer.bottom and labels in layer.top[1:])
    return next((layer.top[0] for layer in readers), None)


def _folder(param: NetParameter, images: str) -> str | None:
    """Where the database lies that these images are of."""
    layers = (layer for layer in param.layer if images in layer.top and layer.data_param.source)
    return next((str(Path(layer.data_param.source).parent) for layer in layers), None)
