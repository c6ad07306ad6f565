"""Owns the options for what several ranks compute and send, and how it travels."""

from __future__ import annotations

import argparse
from typing import Any

from . import options

_AUTO = "auto"
BUCKET_MB = 16.0


def add_design(group: argparse._ArgumentGroup) -> None:
    """Who computes what, and what travels when."""
    add = group.add_argument
    add(
        "--scal",
        choices=("weak", "strong"),
        default="weak",
        help="batch_size is each rank's (weak, the default) or is divided among them (strong)",
    )
    add(
        "--aggregation",
        choices=("blocking", "layerwise"),
        default="layerwise",
        help="gradients travel after backward, or beside it (default: layerwise)",
    )
    add(
        "--propagation",
        choices=("auto", "none", "blocking", "overlapped", "sharded"),
        default="auto",
        help="each rank updates all weights (none), or rank 0 does and sends them before the next "
        "forward, or beside it; sharded: each rank updates and sends a part; auto (the default): "
        "sharded on GPUs of one host, else none",
    )
    add_bucket(
        group,
        "the least that travels at once: of gradients beside backward, or of weights beside "
        "forward; auto: the first iterations try several sizes, and the best stays",
    )
    add(
        "--gradient_type",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="the type in which gradients travel (default: float32)",
    )


def add_communication(group: argparse._ArgumentGroup) -> None:
    """How it travels."""
    add = group.add_argument
    add(
        "--comm",
        metavar="KIND",
        default="auto",
        help="mpi, hierarchical, or for GPUs nccl, ipc, nccl+ipc, copy (default: auto, by where "
        "the ranks are)",
    )
    add(
        "--algorithm",
        metavar="NAME",
        default="auto",
        help="the algorithm of collective operations; auto (the default): as the tuning table says",
    )
    add(
        "--check",
        metavar="N",
        type=options.positive,
        default=0,
        help="compare the ranks' weights every N iterations, and end the job where they differ",
    )
    add("--tuning", metavar="FILE", help="a tuning table that `osucaffe tune` wrote")
    add(
        "--comm_timeout",
        metavar="S",
        type=options.not_negative,
        default=300.0,
        help="end the job when a rank waits longer than this for others (0: never; default: 300)",
    )
    add(
        "--group",
        metavar="N",
        type=options.positive,
        default=0,
        help="take each N ranks of a machine for a machine of their own, to try out hierarchies",
    )


def add_bucket(group: Any, text: str) -> None:
    """Declare the option; text: what it is, for its help."""
    group.add_argument(
        "--bucket_mb", metavar="MB", type=_bucket, default=BUCKET_MB, help=f"{text} (default: 16)"
    )


def tunes_bucket(args: argparse.Namespace) -> bool:
    """Whether the best size of buckets is to be found."""
    return bool(args.bucket_mb == _AUTO)


def bucket_nbytes(args: argparse.Namespace) -> int:
    """The size of buckets that is asked for; where it is to be found, what to begin with."""
    return int((BUCKET_MB if tunes_bucket(args) else args.bucket_mb) * 2**20)


def _bucket(text: str) -> float | str:
    return text if text == _AUTO else options.not_negative(text)


_bucket.__name__ = "number"  # argparse names it in its messages
