"""Owns what layers share whose top has a row for each box of an image."""

from __future__ import annotations

from ..backends.tensor import Tensor
from ..blob import Blob
from .multibox import Boxes


class Rows(Boxes):
    """A layer whose top has as many rows as there happen to be: the blob's `length` tells them.

    The top is as long as it may become, and its rows behind are -1; `Net.read` leaves them out.
    """

    def open_rows(self, top: Blob) -> tuple[Tensor, Tensor]:
        """The rows of the top, and where their number goes."""
        top.keep_exact()
        top.length = self.tensor((1,), persistent=True)
        return top.data.view(top.shape[2:]), top.length
