"""Owns the group of the one rank that remains of several: it computes the batches of all."""

from __future__ import annotations

from ..proto import caffe_pb2
from ..solvers.process_group import ProcessGroup
from .batch import divide_batches


class Alone(ProcessGroup):
    """A process that trains alone, with the batches of so many ranks together."""

    def __init__(self, of: int) -> None:
        self._of = of

    def divide(self, param: caffe_pb2.NetParameter) -> caffe_pb2.NetParameter:
        return divide_batches(param, 1, of=self._of)
