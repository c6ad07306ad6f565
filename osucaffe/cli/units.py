"""Owns how large numbers are told: 1.23 GFLOP, 45.6 MB."""

from __future__ import annotations


def operations(count: float) -> str:
    """Floating-point operations."""
    return _scaled(count, "FLOP")


def size(nbytes: float) -> str:
    """Bytes."""
    return _scaled(nbytes, "B")


def _scaled(count: float, unit: str) -> str:
    for power, prefix in (1e12, "T"), (1e9, "G"):
        if count >= power:
            return f"{count / power:.3g} {prefix}{unit}"
    return f"{count / 1e6:.3g} M{unit}"
