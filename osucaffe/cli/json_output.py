"""Owns --json, for scripts: a document on standard output; the log goes to standard error."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument(
        "--json", action="store_true", help="print the results as JSON, for scripts"
    )


def print_json(value: Any) -> None:
    """Print a document. JSON knows no nan and no infinity: they become null."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def tell(args: argparse.Namespace, text: str) -> None:
    """Print a line for people, where no document is asked for."""
    if not args.json:
        print(text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "item"):  # a number of NumPy's
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
