"""Owns what layers share whose tops are rows that the host finds, as many as there happen to be."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import Arrays, Blobs, Layer, Program, Reshaped, Shapes
from .fields import read_regression


class HostRows(Layer):
    """A layer of `check` and `find`. Layers above see as many rows as were found, no more.

    The forks that have such layers find boxes on the host, too, and send no gradients through.
    """

    reshapes = dynamic = True
    count: int | None = None
    """How many rows there were last; `check` tells how many there are before the first pass."""
    _found: Arrays | None = None
    """What waits for tops of its size."""

    def check(self, bottom: Shapes) -> Shapes:
        """Check the settings; the shapes of the tops before the first pass."""
        raise NotImplementedError

    def find(self, bottom: Arrays) -> Arrays:
        """What goes to the tops: arrays of equally many rows, at least one."""
        raise NotImplementedError

    def setup(self, bottom: Shapes) -> Shapes:
        shapes = self.check(bottom)
        self.no_gradient = tuple(range(len(bottom)))
        self.gives_none = tuple(range(len(shapes)))
        return [(self.count or rows, *rest) for rows, *rest in shapes]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.host(
            [blob.data for blob in bottom], [blob.data for blob in top], function=self._run
        )

    def _run(self, reads: Arrays, writes: Arrays) -> None:
        found = self.find(reads) if self._found is None else self._found
        if len(found[0]) != len(writes[0]):
            self.count, self._found = len(found[0]), found
            raise Reshaped
        self._found = None
        for values, array in zip(found, writes, strict=False):
            array[...] = values.reshape(array.shape)

    # -- what the forks' settings have in common -------------------------------------------------

    def read_regression(self) -> None:
        """`mean` and `deviation`: what box codes were normalized by."""
        self.mean, self.deviation = read_regression(self)

    def check_suppression(self, param: Any, field: str) -> None:
        """Refuse an nms_type that there is not."""
        if param.nms_type not in ("IOU", "IOMU", "IOFU"):
            self.fail(f"{field}.nms_type", f'is "{param.nms_type}": IOU, IOMU or IOFU')

    def check_rows(self, bottom: Shapes, positions: dict[int, tuple[int, ...]]) -> None:
        """Refuse bottoms that are not rows, as many as bottom[0] has, of so many numbers."""
        if not bottom[0]:
            self.fail("bottom[0]", "is one number, but must be rows")
        for i, widths in positions.items():
            numbers = int(np.prod(bottom[i][1:]))
            if bottom[i][:1] != bottom[0][:1] or numbers not in widths:
                wanted = " or ".join(map(str, widths))
                self.fail(
                    f"bottom[{i}]", f"has shape {bottom[i]}, but must be {bottom[0][0]} x {wanted}"
                )

    def check_alike(self, bottom: Shapes, tops: int) -> None:
        """Refuse bottoms of other numbers of rows than bottom[0], and another number of tops."""
        if len(self.param.top) != tops:
            self.fail("top", f"needs {tops}, but the net gives it {len(self.param.top)}")
        rows = bottom[0][:1]
        for i, shape in enumerate(bottom):
            if not rows or shape[:1] != rows:
                wanted = f"{rows[0]} rows" if rows else "rows"
                self.fail(f"bottom[{i}]", f"has shape {shape}, but must have {wanted}")
