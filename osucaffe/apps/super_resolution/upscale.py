"""`osucaffe upscale`: images enlarged by a net for super-resolution, or its score."""

from __future__ import annotations

from ... import log
from ...cli import loading
from ...data.pictures.preprocessing import Preprocessing, find_preprocessing
from ...errors import UserError, naming
from ...net import Net
from ...proto import read_net
from ..photographs.catalogue import find_model
from . import upscale_files as files
from .options import Upscale
from .tiling import Enlarger
from .upscale_score import score

_MODEL = "edsr_baseline"


def run(options: Upscale) -> None:
    """Enlarge the images, or score the net."""
    log.start()
    if options.json and not options.score:
        raise UserError("--json prints the figures of --score: give both")
    jobs = files.find(options.input, options.output, pictures=options.score)
    enlarger = _enlarger(options)
    if options.score:
        score(jobs, enlarger, options)
        return
    for source, target in jobs:
        small = files.read(source)
        files.check(target, small)
        files.write(target, files.enlarge(small, enlarger))
        height, width = small.pixels.shape[1:]
        scale = enlarger.scale
        print(f"{target}: {width * scale}x{height * scale}, {scale} times {source}")


def _enlarger(options: Upscale) -> Enlarger:
    """The net with its weights."""
    model = options.model or str(find_model(_MODEL) / "deploy.prototxt")
    models = loading.read_weights(options.weights)
    with naming(model):
        param = read_net(model)
        net = Net(param, phase="TEST", backend=loading.make_backend(options.device), inference=True)
    entered = find_preprocessing(models[0][1], options.weights)
    loading.load_weights(net, models, strict=options.strict)
    if options.mean is not None or options.input_scale is not None:
        mean, scale = tuple(options.mean or ()), options.input_scale or 1.0
        entered = Preprocessing("--mean and --input_scale", scale, mean)
    if entered is None:
        raise UserError(
            f"{options.weights}: does not record how training preprocessed images: give --mean and "
            "--input_scale, or use weights written by osucaffe train, which include the trained net"
        )
    with naming(model):
        enlarger = Enlarger(net, entered, options.tile)
        if options.scale and options.scale != enlarger.scale:
            raise UserError(f"--scale {options.scale}: this net enlarges by {enlarger.scale}")
    return enlarger
