"""The run's settings for reading data, which no net has: threads, bad records, order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..options.flags import flag, like
from ..options.kinds import COUNT, Kind, positive

if TYPE_CHECKING:
    from .ahead.pipeline import Buffer
    from .resident.sharded import Neighbours

READERS = flag(
    "threads that read data; more than 4 readers of compressed images are processes "
    "(default: at most one per core)",
    COUNT,
    ranks="own",
)
ON_BAD_RECORD = flag(
    "on an image that cannot be read: stop (the default), or name it, count it and go on "
    "without it",
    {"stop": False, "skip": True},
    False,
    command="stop",
    name="--on_bad_record",
)
IGNORE_EXIF = flag(
    "take pixels as they are stored, not upright by their EXIF orientation",
    environment="OSUCAFFE_IGNORE_EXIF",
)


class Inputs(Protocol):
    """What fills the blobs of an Input layer. position: of the next records, as of a data layer."""

    position: int

    def next(self) -> list[Buffer]:
        """A buffer for each of its tops."""


@dataclass(frozen=True)
class DataConfig:
    """sharers: how many processes share the host's memory and its cores. neighbours: other ranks,
    whose devices may share the records that do not fit on one. inputs: gives the stream of an
    Input layer (None: its blobs are written to between passes).
    """

    readers: int | None = like(READERS)
    skip_bad: bool = like(ON_BAD_RECORD)
    ignore_exif: bool = like(IGNORE_EXIF)
    shuffle: int = flag(
        "train on the records in a new order each epoch, in blocks of BLOCK records (default: "
        "256); all data layers of a net bring theirs in the same order",
        Kind("BLOCK", positive),
        0,
        nargs="?",
        const=256,
    )
    decode: str = flag(
        "what decodes JPEGs in an LMDB that are read again in each epoch: the CPU (host); the "
        "GPU (gpu); or what is faster (auto, the default): the JPEG engines of a single GPU, if it "
        "has any, as an H100 or H200 does, for images from 200x200 on; else the CPU",
        ("auto", "host", "gpu"),
        "host",
        command="auto",
        ranks="own",
    )
    cache: str = flag(
        "where records are kept after the first read: on the GPU, divided among the GPUs of a "
        "host if they don't fit on each (device); decoded in host memory (host); or nowhere "
        "(none). The default, auto, keeps them on the GPU if they fit, else keeps compressed "
        "images decoded in host memory if they fit there",
        ("auto", "device", "host", "none"),
        "none",
        command="auto",
    )
    sharers: int = 1
    neighbours: Neighbours | None = None
    inputs: Callable[[Any], Inputs] | None = None
