"""Owns the options for what several ranks compute and send, and how it travels."""

from __future__ import annotations

import argparse
from typing import Any

from .. import options

_AUTO = "auto"
BUCKET_MB = 16.0


def add_design(group: argparse._ArgumentGroup) -> None:
    """Who computes what, and what travels when."""
    add = group.add_argument
    add(
        "--scal",
        choices=("weak", "strong"),
        default="weak",
        help="weak scaling: batch_size is per rank (the default); strong: it is divided among the "
        "ranks",
    )
    add(
        "--aggregation",
        choices=("blocking", "layerwise"),
        default="layerwise",
        help="exchange gradients after backward (blocking), or bucket by bucket during it "
        "(layerwise, the default)",
    )
    add(
        "--propagation",
        choices=("auto", "none", "blocking", "overlapped", "sharded"),
        default="auto",
        help="how updated weights reach the ranks. none: each rank updates all of them; blocking, "
        "overlapped: rank 0 updates them and broadcasts before or during the next forward; "
        "sharded: each rank updates a part and all gather; auto (the default): sharded on GPUs "
        "of one host, else none",
    )
    add_bucket(
        group,
        "the smallest bucket: of gradients during backward, or of weights during forward; auto: "
        "try several sizes in the first iterations, and keep the fastest",
    )
    add(
        "--gradient_type",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="the data type of gradients on the wire (default: float32)",
    )


def add_communication(group: argparse._ArgumentGroup) -> None:
    """How it travels."""
    add = group.add_argument
    add(
        "--comm",
        metavar="KIND",
        default="auto",
        help="communicator: mpi, hierarchical, or for GPUs nccl, ipc, nccl+ipc, copy (default: "
        "auto, which depends on where the ranks are)",
    )
    add(
        "--algorithm",
        metavar="NAME",
        default="auto",
        help="algorithm of collective operations (default: auto, as the tuning table says)",
    )
    add(
        "--check",
        metavar="N",
        type=options.positive,
        default=0,
        help="compare the ranks' weights every N iterations, and stop if they differ",
    )
    add("--tuning", metavar="FILE", help="a tuning table that `osucaffe tune` wrote")
    add(
        "--comm_timeout",
        metavar="S",
        type=options.not_negative,
        default=300.0,
        help="stop when a rank waits longer than S seconds for others (0: never; default: 300)",
    )
    add(
        "--group",
        metavar="N",
        type=options.positive,
        default=0,
        help="treat each N ranks of a machine as a machine of their own, to try out hierarchies",
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
