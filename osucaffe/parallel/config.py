"""Owns the settings of data-parallel training for exchanging gradients and weights, and the choice
of those left open."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..comm.communicator import Communicator
from ..comm.gpu.on_stream import OnStream

logger = logging.getLogger("osucaffe")


@dataclass(frozen=True)
class ParallelConfig:
    """How gradients and weights are exchanged.

    aggregation: "blocking", all gradients after backward, at once; "layerwise", bucket by bucket
    during it; "buckets", bucket by bucket after it (only predicted). propagation: "none",
    each rank updates all weights; "blocking" or "overlapped": rank 0 alone does, and they reach the
    others in one broadcast, or layer by layer during forward; "sharded": each rank updates its
    part, for which alone it needs the sums of gradients, and gets the others' during forward (the
    first stage of ZeRO: Rajbhandari et al., SC 2020); "auto": see `choose_propagation`. bucket:
    the least bytes of a bucket. scaling: whether batch_size is each rank's ("weak") or
    divided ("strong"); of: how many ranks' batches are divided.
    """

    aggregation: str = "layerwise"
    propagation: str = "none"
    bucket: int = 16 << 20
    scaling: str = "weak"
    of: int = 1

    @property
    def overlaps(self) -> bool:
        """Whether any communication overlaps with computation."""
        return self.aggregation == "layerwise" or self.propagation in ("overlapped", "sharded")


def choose_propagation(comm: Communicator, *, separable: bool) -> str:
    """What "auto" means with this communicator; a log line states the choice and the reason.

    separable: the update of a part needs no sum over all gradients. Sharded by copy engines was the
    fastest, or as fast as any, for each net that was tried on H200s, in bf16
    (benchmarks/results/scaling-*.md).
    """
    if not isinstance(comm, OnStream):
        return "none"
    from ..comm.gpu.copy_engine import CopyEngine

    if isinstance(comm, CopyEngine) and separable:
        logger.info(
            "Each GPU updates a part of the weights, and copy engines move gradients and weights: "
            "the fastest design for GPUs of a host that reach each other "
            "(--propagation sharded --comm copy)"
        )
        return "sharded"
    why = (
        "clipping, or a loss scale, needs the sum over all gradients"
        if isinstance(comm, CopyEngine)
        else "copy engines do not move them"
    )
    logger.info("Each GPU updates all weights: %s (--propagation none)", why)
    return "none"
