"""Enlarge images by a net for super-resolution, or measure how well it does that.

  osucaffe upscale photo.jpg large.png --weights edsr_baseline.caffemodel
  osucaffe upscale photos large --weights edsr_baseline.caffemodel
  osucaffe upscale originals compared --weights edsr_baseline.caffemodel --score

IN is an image or a folder of images of any size; OUT is the file to write, or a folder that gets
files of the same names. JPEG, PNG and WebP can be written. EXIF orientation is applied;
transparency is kept (enlarged by bicubic interpolation), grey images stay grey, and colour profiles
are kept. Images larger than --tile are enlarged tile by tile, with the same result.

With --score, IN are originals: each is shrunk like the net's training data (MATLAB's antialiased
bicubic), enlarged by the net, and compared with the original. The table has PSNR and SSIM (of the
luma, without a border as wide as the factor), next to those of bicubic enlargement; OUT gets
pictures side by side: small, bicubic, net, original.

The net is that of models/edsr_baseline, which doubles the size, unless --model names another deploy
net. The weights file says how images are preprocessed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .. import json_output, options

if TYPE_CHECKING:
    from .tiling import Enlarger

_MODEL = "edsr_baseline"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("input", metavar="IN", help="an image, or a folder of images")
    add("output", metavar="OUT", help="the file or folder to write")
    add("--model", metavar="FILE", help=f"the deploy prototxt (default: {_MODEL}'s)")
    add("--weights", metavar="FILE", required=True, help="the trained model")
    add(
        "--scale",
        metavar="N",
        type=options.positive,
        help="stop if the net does not enlarge by this factor",
    )
    add(
        "--tile",
        metavar="N",
        type=options.extent,
        default=512,
        help="width and height of the parts of the image that are enlarged at a time: smaller ones "
        "need less memory (default: 512; 0: all at once)",
    )
    add(
        "--score",
        action="store_true",
        help="IN are original images: shrink and enlarge them, and print PSNR and SSIM",
    )
    json_output.add_json(parser)
    options.add_strict(parser)
    options.add_device(parser)


def run(args: argparse.Namespace) -> None:
    """Enlarge the images, or score the net."""
    from ... import log
    from . import upscale_files as files
    from .upscale_score import score

    log.start()
    if args.json and not args.score:
        from ...errors import UserError

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
    from ...data.pictures.preprocessing import find_preprocessing
    from ...errors import UserError, naming
    from ...net import Net
    from ...proto import read_net
    from ..nets.models import find_model
    from .tiling import Enlarger

    model = args.model or str(find_model(_MODEL) / "deploy.prototxt")
    models = options.read_weights([args.weights])
    with naming(model):
        param = read_net(model)
        net = Net(param, phase="TEST", backend=options.make_backend(args), inference=True)
    entered = find_preprocessing(models[0][1], args.weights)
    options.load_weights(net, models, args)
    if entered is None:
        raise UserError(
            f"{args.weights}: says nothing of how images entered the net in training: take the "
            "weights that osucaffe train wrote, which hold the net that was trained"
        )
    with naming(model):
        enlarger = Enlarger(net, entered, args.tile)
        if args.scale and args.scale != enlarger.scale:
            raise UserError(f"--scale {args.scale}: this net enlarges by {enlarger.scale}")
    return enlarger
