"""A rank's own options leave those that were given alone."""

from __future__ import annotations

import argparse

from osucaffe.cli import ranks
from osucaffe.comm.job import Job


def test_a_rank_alone_takes_the_first_of_all_gpus() -> None:
    given = argparse.Namespace(gpu="all", threads=None)
    own, topology = ranks.place(given, Job())
    assert (own.gpu, given.gpu) == ("0", "all")
    assert topology.own.rank == 0
    own, _ = ranks.place(argparse.Namespace(gpu=None, threads=3), Job())
    assert vars(own) == {"gpu": None, "threads": 3}
