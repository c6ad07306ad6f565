"""Owns the list of primitives: the name, tensors and settings of each, the same on every backend.

A layer calls them on a `Program`, which records the call instead of running it. A backend has, for
each name, a function `name(call, *tensors, **settings) -> Step` that prepares the call: it may
choose the layout of flexible tensors and ask for scratch; the step it returns reads
`tensor.array` (or `.address`) only when it runs, because memory is placed in between.

Each family has a file; `recording.py` says how a declaration is read.
"""

from .convolution import ConvolutionPrimitives
from .detection import DetectionPrimitives
from .elementwise import ElementwisePrimitives
from .losses import LossPrimitives
from .movement import MovementPrimitives
from .normalization import NormalizationPrimitives
from .pooling import PoolingPrimitives
from .recording import NAMES
from .recurrent import RecurrentPrimitives
from .regions import RegionPrimitives
from .update import UpdatePrimitives

__all__ = ["NAMES", "Program"]


class Program(
    MovementPrimitives,
    ElementwisePrimitives,
    ConvolutionPrimitives,
    PoolingPrimitives,
    RegionPrimitives,
    NormalizationPrimitives,
    RecurrentPrimitives,
    LossPrimitives,
    DetectionPrimitives,
    UpdatePrimitives,
):
    """A list of calls in the making, with a method for each primitive."""
