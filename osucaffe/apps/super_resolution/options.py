"""The options of the commands for super-resolution."""

from __future__ import annotations

from dataclasses import dataclass

from ...cli import options as common
from ...cli.options import Device
from ...options.flags import argument, flag, group, like
from ...options.kinds import COUNT, EXTENT, Kind, numbers


@dataclass(frozen=True, kw_only=True)
class Upscale:
    """
      osucaffe upscale photo.jpg large.png --weights edsr_baseline.caffemodel
      osucaffe upscale photos large --weights edsr_baseline.caffemodel
      osucaffe upscale originals compared --weights edsr_baseline.caffemodel --score

    IN is an image or a folder of images of any size; OUT is the file to write, or a folder that
    gets files of the same names. JPEG, PNG and WebP can be written;
    transparency is kept (enlarged by bicubic interpolation), grey images stay grey, and colour
    profiles are kept. Images larger than --tile are enlarged tile by tile, with the same result.

    With --score, IN are originals: each is shrunk like the net's training data (MATLAB's
    antialiased bicubic), enlarged by the net, and compared with the original. The table has PSNR
    and SSIM (of the luma, without a border as wide as the factor), next to those of bicubic
    enlargement; OUT gets pictures side by side: small, bicubic, net, original.

    The net is that of models/edsr_baseline, which doubles the size, unless --model names another
    deploy net. The weights file says how images are preprocessed, unless --mean or --input_scale
    does."""

    input: str = argument("an image, or a folder of images", "IN")
    output: str = argument("the file or folder to write", "OUT")
    model: str | None = flag("the deploy prototxt (default: edsr_baseline's)", "FILE")
    weights: str = like(common.ONE_MODEL)
    scale: int | None = flag("stop if the net does not enlarge by this factor", COUNT)
    mean: list[float] | None = flag(
        "what is subtracted from bytes, 0 to 255, before they enter the net: one number, or three "
        "for blue, green and red (default: as the weights file says)",
        Kind("M", numbers),
    )
    input_scale: float | None = flag(
        "factor applied after that, 0.00392157 for nets of 0 to 1 (default: as the weights file "
        "says, or 1 with --mean)",
        Kind("X", float),
    )
    tile: int = flag(
        "width and height of the parts of the image that are enlarged at a time: smaller ones "
        "need less memory (default: %(default)s; 0: all at once)",
        EXTENT,
        512,
    )
    score: bool = flag("IN are original images: shrink and enlarge them, and print PSNR and SSIM")
    json: bool = like(common.JSON)
    strict: bool = like(common.STRICT)
    no_python_layers: bool = like(common.NO_PYTHON_LAYERS)
    device: Device = group(Device)
