"""Owns the option --bucket_mb: how much of the gradients, or of the weights, travels at once."""

from __future__ import annotations

import argparse
from typing import Any

from . import options

AUTO = "auto"
DEFAULT_MB = 16.0


def add_argument(group: Any, text: str) -> None:
    """Declare the option; text: what it is, for its help."""
    group.add_argument(
        "--bucket_mb", metavar="MB", type=_size, default=DEFAULT_MB, help=f"{text} (default: 16)"
    )


def is_auto(args: argparse.Namespace) -> bool:
    """Whether the best size is to be found."""
    return bool(args.bucket_mb == AUTO)


def nbytes(args: argparse.Namespace) -> int:
    """The size that is asked for; where it is to be found, what to begin with."""
    return int((DEFAULT_MB if is_auto(args) else args.bucket_mb) * 2**20)


def _size(text: str) -> float | str:
    return text if text == AUTO else options.not_negative(text)


_size.__name__ = "number"  # argparse names it in its messages
