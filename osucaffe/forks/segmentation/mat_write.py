"""MatWrite, which writes blobs to files for MATLAB, one for each."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import count

import numpy as np

from ...files import read_lines, write_bytes
from ...layers.base import Arrays, Blobs, Layer, Program, Shapes, register

# Of MATLAB's format 5: types of elements, and the class of arrays.
_INT8, _INT32, _UINT32, _SINGLE, _MATRIX = 1, 5, 6, 7, 14
_SINGLE_CLASS = 7


def _element(kind: int, content: bytes) -> bytes:
    """A part of a file, after its type and length."""
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def to_mat(values: np.ndarray) -> bytes:
    """A file with an array of at most four axes as MATLAB's `data`: width, height, channels,
    items, whose memory is that of items, channels, height, width."""
    extents = [*values.shape, 1, 1, 1, 1][3::-1]
    matrix = (
        _element(_UINT32, struct.pack("<II", _SINGLE_CLASS, 0))
        + _element(_INT32, struct.pack("<4i", *extents))
        + _element(_INT8, b"data")
        + _element(_SINGLE, values.astype("<f4").tobytes())
    )
    head = b"MATLAB 5.0 MAT-file, written by osucaffe".ljust(124) + struct.pack("<H2s", 256, b"IM")
    return head + _element(_MATRIX, matrix)


@register("MatWrite")
class MatWrite(Layer):
    """Write each bottom to PREFIX + NAME + _blob_i.mat in every period-th pass (DeepLab, PSPNet).

    NAME is that of the pass in the list source, without its last `strip` characters; iter_N where
    there is no list.
    """

    bottoms = (1, None)
    tops = (0, 0)
    passes: Iterator[int] | None = None

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.mat_write_param
        self.no_gradient = tuple(range(len(bottom)))
        self.check_positive("mat_write_param", "period")
        for i, shape in enumerate(bottom):
            if len(shape) > 4:
                self.fail(f"bottom[{i}]", f"has shape {shape}: at most 4 axes can be written")
        self.names: list[str] | None = None
        if param.HasField("source"):
            with self.blame("mat_write_param.source"):
                lines = read_lines(param.source, "names")
            self.names = [line.split()[0] for line in lines if line.strip()]
            for name in self.names:
                if not 0 <= param.strip < len(name):
                    self.fail("mat_write_param.strip", f"{param.strip} leaves nothing of {name}")
        self.passes = self.passes or count()  # it goes on when the net changes its size
        return []

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.host([blob.data for blob in bottom], [], function=self._write)

    def _write(self, reads: Arrays, _: Arrays) -> None:
        assert self.passes is not None
        param, number = self.param.mat_write_param, next(self.passes)
        if number % param.period:
            return
        name = f"iter_{number}"
        if self.names is not None:
            if number >= len(self.names):
                text = f"{param.source} has {len(self.names):,} names, and this is one pass more"
                self.fail("mat_write_param.source", text)
            name = self.names[number][: len(self.names[number]) - param.strip]
        for i, values in enumerate(reads):
            with self.blame("mat_write_param.prefix"):
                write_bytes(f"{param.prefix}{name}_blob_{i}.mat", to_mat(values))
