"""Owns `osucaffe bench`, which runs a benchmark of osucaffe's source folder."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from ...errors import UserError

_SOURCE = Path(__file__).parents[3]


def run(args: argparse.Namespace) -> None:
    """Run benchmarks/rpc/bench_rpc.py."""
    if not (_SOURCE / "benchmarks").is_dir():
        raise UserError("bench needs osucaffe's source, which has the folder benchmarks: clone it")
    sys.path.insert(0, str(_SOURCE))
    importlib.import_module("benchmarks.rpc.bench_rpc").run(args)
