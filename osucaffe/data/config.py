"""Owns the run's settings for reading data, which no net has: threads, bad records, order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ahead.pipeline import Buffer
    from .resident.sharded import Neighbours


@dataclass(frozen=True)
class DataConfig:
    """readers: threads or processes of each layer that reads (None: the layer's own choice).
    skip_bad: leave out records that cannot be used. shuffle: records of a block; the blocks
    come in another order in each epoch of training (0: as they lie). decode: what decodes a
    database's uncached JPEGs: the readers ("host"), the GPU that trains or tests on them
    ("gpu"), or "auto": that GPU's JPEG engines, if it has any and they are fastest for the net,
    else the readers.
    cache: where records are cached once read: "device" (the memory of the backend),
    "host" (decoded ones, in the host's), "none", or "auto": on a GPU if there is room for all, else
    decoded ones on the host if there is.
    sharers: how many processes share the host's memory and its cores. neighbours: other ranks,
    whose devices may share the records that do not fit on one. inputs: gives the next batch
    of an Input layer, a buffer for each of its tops (None: they are written to between passes).
    """

    readers: int | None = None
    skip_bad: bool = False
    shuffle: int = 0
    decode: str = "host"
    cache: str = "none"
    sharers: int = 1
    neighbours: Neighbours | None = None
    inputs: Callable[[Any], Sequence[Buffer]] | None = None
