"""Inner products that are divided among ranks: split, they send activations, not gradients.

"One weird trick for parallelizing convolutional neural networks" (Krizhevsky, 2014, arXiv
1404.5997): each rank owns a part of a layer's outputs, and its weights. The layer
(`layers/splitting.py`) gathers the inputs of all ranks' images, computes its outputs for
all of them, and swaps these for its own images' outputs; backward does the reverse. The gradients
of the weights are complete where they are needed. All ranks get the others' weights when they are
to have the whole net: for tests, snapshots and comparisons (`exchange.py`).
"""

from __future__ import annotations

import logging
from typing import Protocol

from ...comm.gpu.on_stream import OnStream
from ...errors import UserError
from ...layers.base import Layer
from ...net import Net
from ...parallel.buckets import ITEM
from ...parallel.config import SPLIT

logger = logging.getLogger("osucaffe")
GRAIN = 16
"""On a GPU, parts begin at multiples of that many numbers (64 bytes), as kernels want them to."""


class Splitting(Protocol):
    """What it needs of a communicator; layers call its operations."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def has_all_to_all(self) -> bool: ...


class SplitInnerProducts:
    """The `Splitter` of a net.

    wanted: "auto", or names of layers, separated by commas. passes: of an iteration (iter_size).
    UserError where the communicator has no all-to-all.
    """

    def __init__(self, comm: Splitting, wanted: str, passes: int) -> None:
        if not comm.has_all_to_all:
            raise UserError(
                f"{SPLIT} needs an all-to-all, which --comm ipc and copy do not have: give --comm "
                "nccl, or mpi where ranks share a GPU"
            )
        self.comm, self.blocks = comm, not isinstance(comm, OnStream)
        self._names = [] if wanted == "auto" else wanted.split(",")
        self._passes = passes

    def splits(self, layer: Layer, rows: int, inputs: int, outputs: int, unfit: str) -> bool:
        """As named; or where fewer bytes travel so. (Both times 2 (n - 1)/n of what is compared.)

        UserError where a named layer cannot be split.
        """
        size, on_gpu = self.comm.size, layer.context.backend.name != "cpu"
        if outputs % size:
            unfit = f"its {outputs} outputs cannot be divided among {size} ranks"
        elif on_gpu and (rows * inputs % GRAIN or outputs // size % GRAIN):
            unfit = f"on a GPU a rank's inputs, and its outputs, must be multiples of {GRAIN}"
        elif any(spec.name for spec in layer.param.param):
            unfit = "its parameters have names, by which other layers may share them"
        if self._names:
            if layer.name in self._names and unfit:
                layer.fail("name", f"{SPLIT} cannot split it: {unfit}")
            return layer.name in self._names
        weights, activations = (inputs + 1) * outputs, rows * (size * inputs + outputs)
        return not unfit and layer.spec(0).lr_mult != 0 and self._passes * activations < weights

    def report(self, net: Net) -> None:
        """Log what was split. UserError where a named layer is not an inner product of the net."""
        split = [layer for layer in net.layers if layer.is_split]
        found = {layer.name for layer in split}
        if missing := [name for name in self._names if name not in found]:
            raise UserError(f"{SPLIT}: the training net has no InnerProduct {missing[0]!r}")
        if not split:
            logger.info("No inner product is split: none would send fewer bytes")
            return
        elements = net.arena.learned - net.arena.shared
        logger.info(
            "Split among %d ranks: %s; %.1f of %.1f MB of gradients no longer travel",
            *(self.comm.size, ", ".join(layer.label for layer in split)),
            *(elements * ITEM / 1e6, net.arena.learned * ITEM / 1e6),
        )
