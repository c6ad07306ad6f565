"""The start of `osucaffe train`: what happens before training code is imported."""

from __future__ import annotations

from ...comm.job.job import launched_by
from ..launch.start import launch_training
from .options import Train


def run(options: Train) -> int:
    """Train, alone or as one of the ranks of a job. Returns the exit code."""
    launch_training(options, _check)
    gpu = options.device.gpu
    if gpu is not None and gpu.isdecimal() and not launched_by():
        from ...backends.cuda.runtime.startup import begin

        begin(int(gpu))  # a GPU takes as long to start as the modules to be read
    from . import training

    return training.run(options)


def _check(options: Train) -> None:
    from . import training

    training.check(options)
