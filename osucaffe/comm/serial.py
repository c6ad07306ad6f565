"""Owns the communicator of a single rank: every operation is complete before it begins."""

from __future__ import annotations

from typing import Any

from .communicator import Communicator


class Serial(Communicator):
    """One rank, alone."""

    def __init__(self) -> None:
        super().__init__(0, 1, level="serial")

    def run(self, operation: str, array: Any, root: int = 0) -> None:
        """Nothing needs to be done."""

    def transfer(self, array: Any, *, to: int | None = None, source: int | None = None) -> None:
        """There is nobody to talk to."""
        raise ValueError("a single rank has no peer to send to or receive from")
