"""Owns how images enter the net that `osucaffe classify` runs: as its options say, else as in
training."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import numpy as np

from ..data.preprocessing import Preprocessing, find_preprocessing
from ..errors import UserError, listed
from ..net import Net
from ..proto import read_mean, read_net
from ..pycaffe.image_input import ImageInput
from . import options
from .image_files import Entry, FileInput
from .photo_input import find_photos_input

logger = logging.getLogger("osucaffe")


def find_entry(net: Net, trained: Preprocessing | None, args: argparse.Namespace) -> Entry:
    """Let images enter as the options and the training say, and tell it.

    trained: what the file of weights tells of the training.
    """
    entry = ImageInput(net)
    files = FileInput(entry, args.image_dims)
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
            "How images were preprocessed in training is unknown (%s has no layer that "
            "reads images): give --trained_with train_val.prototxt, or --mean and --input_scale",
            args.weights,
        )
    if args.channel_swap and sorted(args.channel_swap) != list(range(entry.channels)):
        swap = ",".join(map(str, args.channel_swap))
        numbers = listed(range(entry.channels))
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
    files.scale_as_trained(extents)
    scaled, inner = ("x".join(map(str, each)) for each in (files.image_dims, entry.extents))
    part = "ten parts" if args.oversample else "the middle"
    crop = f", of which {part} of {inner}" if scaled != inner else ""
    origin = f" (trained: {trained.origin})" if trained else ""
    logger.info("Images are scaled to %s%s; %s%s", scaled, crop, entry, origin)
    return files


def _read_mean(given: str) -> np.ndarray:
    """What --mean gives: a value for each channel, or for all, or an image."""
    if not Path(given).exists():
        try:
            return np.array([float(part) for part in options.names(given)])
        except ValueError:
            raise UserError(f"--mean {given}: there is no such file, and it is no list") from None
    if Path(given).suffix == ".npy":
        try:
            return np.load(given)
        except (OSError, ValueError):
            raise UserError(f"--mean {given}: not a whole .npy file") from None
    return read_mean(given)
