"""Tables that the host fills for many steps ahead, each of which takes one row by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .tensor import Run, Shape, Tensor
from .uploads import Uploads

if TYPE_CHECKING:
    from .backend import Backend


class RowsAhead:
    """A table of rows of `shape`, and a cursor, for the primitive `next_row`.

    dtype: float32 or int32. most: rows of the table. `left`: how many of those that were written no
    step has taken: who lets one run that does counts it here. Where many steps find all in such
    tables, nothing is copied between them, and a graph that does all of a step is replayed alone.
    """

    def __init__(self, uploads: Uploads, shape: Shape, dtype: str, most: int, name: str) -> None:
        self._uploads = uploads
        self.table = Tensor((most, *shape), dtype, name, persistent=True)
        self.cursor = Tensor((1,), "int32", f"{name}.next", persistent=True)
        self._memory = [uploads.memory(self.table.shape, dtype) for _ in range(2)]
        self._first = uploads.memory((1,), "int32")
        self._first[0] = 0
        self._sent: list[Run] = []
        self.left = 0

    @property
    def most(self) -> int:
        """How many rows can be written at once."""
        return self.table.shape[0]

    def place(self, backend: Backend) -> None:
        """Give the table and the cursor memory."""
        for tensor in (self.table, self.cursor):
            backend.allocate_for(tensor)

    def write(self, rows: np.ndarray) -> None:
        """Let these be the rows that the next steps take, in place of those that are left."""
        while len(self._sent) > 1:
            self._sent.pop(0)()
        self._memory.reverse()
        given = self._memory[0][: len(rows)]
        given[:] = rows
        self._uploads.send(given, self.table, after=self._uploads.mark())
        self._sent.append(self._uploads.send(self._first, self.cursor))
        self._uploads.wait()
        self.left = len(rows)

    def wait(self) -> None:
        """Wait until all that was written, or sent before it, has left the host's memory."""
        while self._sent:
            self._sent.pop(0)()
