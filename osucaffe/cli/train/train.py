"""Owns the start of `osucaffe train`: what happens before training code is imported."""

from __future__ import annotations

import argparse

from ...comm.job.job import launched_by
from ..launch.start import launch


def run(args: argparse.Namespace) -> int:
    """Train, alone or as one of the ranks of a job. Returns the exit code."""
    launch(args, _check)
    if args.gpu is not None and args.gpu.isdecimal() and not launched_by():
        from ...backends.cuda.runtime.startup import begin

        begin(int(args.gpu))  # a GPU takes as long to start as the modules to be read
    from . import training

    return training.run(args)


def _check(args: argparse.Namespace) -> None:
    from . import training

    training.check(args)
