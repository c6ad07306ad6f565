"""Owns `osucaffe upscale`: images enlarged by a net for super-resolution, or its score."""

from __future__ import annotations

import argparse

from ... import log
from ...data.pictures.preprocessing import Preprocessing, find_preprocessing
from ...errors import UserError, naming
from ...net import Net
from ...proto import read_net
from .. import options
from ..nets.models import find_model
from . import upscale_files as files
from .tiling import Enlarger
from .upscale_score import score

_MODEL = "edsr_baseline"


def run(args: argparse.Namespace) -> None:
    """Enlarge the images, or score the net."""
    log.start()
    if args.json and not args.score:
        raise UserError("--json prints the figures of --score: give both")
    jobs = files.find(args.input, args.output, pictures=args.score)
    enlarger = _enlarger(args)
    if args.score:
        score(jobs, enlarger, args)
        return
    for source, target in jobs:
        small = files.read(source)
        files.check(target, small)
        files.write(target, files.enlarge(small, enlarger))
        height, width = small.pixels.shape[1:]
        scale = enlarger.scale
        print(f"{target}: {width * scale}x{height * scale}, {scale} times {source}")


def _enlarger(args: argparse.Namespace) -> Enlarger:
    """The net with its weights."""
    model = args.model or str(find_model(_MODEL) / "deploy.prototxt")
    models = options.read_weights(args.weights)
    with naming(model):
        param = read_net(model)
        net = Net(param, phase="TEST", backend=options.make_backend(args), inference=True)
    entered = find_preprocessing(models[0][1], args.weights)
    options.load_weights(net, models, args)
    if args.mean is not None or args.input_scale is not None:
        mean, scale = tuple(args.mean or ()), args.input_scale or 1.0
        entered = Preprocessing("--mean and --input_scale", scale, mean)
    if entered is None:
        raise UserError(
            f"{args.weights}: does not record how training preprocessed images: give --mean and "
            "--input_scale, or use weights written by osucaffe train, which include the trained net"
        )
    with naming(model):
        enlarger = Enlarger(net, entered, args.tile)
        if args.scale and args.scale != enlarger.scale:
            raise UserError(f"--scale {args.scale}: this net enlarges by {enlarger.scale}")
    return enlarger
