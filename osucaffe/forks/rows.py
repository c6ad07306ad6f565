"""The base of layers that read boxes, or whose tops have a row for each of those there are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..layers.base import Arrays, Blob, Blobs, Layer, Program, Reshaped, Shapes, Tensor
from ..proto import caffe_pb2


class Boxes(Layer):
    """What layers share that read SSD's boxes: bottoms of codes, scores and priors."""

    def lay_out_boxes(self, bottom: Shapes, field: str) -> None:
        """Set `location_shape` (N, P, L, 4), `confidence_shape` (N, P, C) and `prior_shape`."""
        param = getattr(self.param, field)
        if not param.num_classes:
            self.fail(f"{field}.num_classes", "is missing: set it to the classes and background")
        items, priors = bottom[0][0], math.prod(bottom[2][2:]) // 4
        boxes = 1 if param.share_location else param.num_classes
        self.location_shape = (items, priors, boxes, 4)
        self.confidence_shape = (items, priors, param.num_classes)
        self.prior_shape = (2, priors, 4)
        like = f": {items} items, {priors} priors, {param.num_classes} classes"
        for i, shape in enumerate((self.location_shape, self.confidence_shape, self.prior_shape)):
            self.check_count(bottom, i, math.prod(shape), like=like)

    def coding(self, param: Any, scaled: bool) -> dict[str, Any]:
        """How boxes are coded, as settings of primitives."""
        return {
            "coding": caffe_pb2.PriorBoxParameter.CodeType.Name(param.code_type),
            "scaled": scaled,
        }


class Rows(Boxes):
    """A layer whose top has as many rows as there happen to be: the blob's `length` tells them.

    The top is as long as it may become, and its rows after are -1; `Net.read` leaves them out.
    """

    def open_rows(self, top: Blob) -> tuple[Tensor, Tensor]:
        """The rows of the top, and where their number goes."""
        top.keep_exact()
        top.length = self.tensor((1,), persistent=True)
        return top.data.view(top.shape[2:]), top.length


def put_rows(rows: np.ndarray, writes: Arrays) -> None:
    """Write rows, no more than there is room for, to what `open_rows` gave; the rest is -1."""
    table = writes[0].reshape(-1, rows.shape[1])
    table.fill(-1)
    table[: len(rows)] = rows[: len(table)]
    writes[1].fill(min(len(rows), len(table)))


class HostRows(Layer):
    """A layer of `check` and `find`, on the host. Layers above see as many rows as were found.

    The forks that have such layers compute them on the host, too, and send no gradients through.
    """

    reshapes = dynamic = True
    count: int | None = None
    """How many rows there were last; `check` tells how many there are before the first pass."""
    _pending: Arrays | None = None
    """What waits for tops of its size."""

    def check(self, bottom: Shapes) -> Shapes:
        """Check the settings; the shapes of the tops before the first pass."""
        raise NotImplementedError

    def compute(self, bottom: Arrays) -> Arrays:
        """What goes to the tops: arrays of equally many rows, at least one."""
        raise NotImplementedError

    def setup(self, bottom: Shapes) -> Shapes:
        shapes = self.check(bottom)
        self.no_gradient = tuple(range(len(bottom)))
        self.non_differentiable_tops = tuple(range(len(shapes)))
        return [(self.count or rows, *rest) for rows, *rest in shapes]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.host(
            [blob.data for blob in bottom], [blob.data for blob in top], function=self._run
        )

    def _run(self, reads: Arrays, writes: Arrays) -> None:
        results = self.compute(reads) if self._pending is None else self._pending
        if len(results[0]) != len(writes[0]):
            self.count, self._pending = len(results[0]), results
            raise Reshaped
        self._pending = None
        for values, array in zip(results, writes, strict=False):
            array[...] = values.reshape(array.shape)

    def check_rows(self, bottom: Shapes, positions: dict[int, tuple[int, ...]]) -> None:
        """Refuse bottoms that are not rows, as many as bottom[0] has, of that many numbers."""
        if not bottom[0]:
            self.fail("bottom[0]", "is one number, but must be rows")
        for i, widths in positions.items():
            numbers = math.prod(bottom[i][1:])
            if bottom[i][:1] != bottom[0][:1] or numbers not in widths:
                shape = f"{bottom[0][0]} x {' or '.join(map(str, widths))}"
                self.fail(f"bottom[{i}]", f"has shape {bottom[i]}, but must be {shape}")

    def check_selected(self, bottom: Shapes, tops: int) -> None:
        """Refuse bottoms of other numbers of rows than bottom[0], and another number of tops."""
        if len(self.param.top) != tops:
            self.fail("top", f"needs {tops}, but the net gives it {len(self.param.top)}")
        for i, shape in enumerate(bottom):
            if shape[:1] != bottom[0][:1]:
                self.fail(f"bottom[{i}]", f"has shape {shape}, but must have {bottom[0][0]} rows")
