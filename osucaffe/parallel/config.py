"""Owns the settings of data-parallel training for exchanging gradients and weights, and the choice
of those left open."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..comm.communicator import Communicator
from ..comm.gpu.on_stream import OnStream
from ..errors import UserError

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
    divided ("strong"); of: how many ranks' batches are divided. compression: see
    `compression/choose.py`. local_steps: the iterations after which weights are averaged, from
    iteration local_after on, by an outer step (see `local_steps.py`); 0: gradients are
    exchanged in each. split_inner_products: "none", or as for `split.py`.
    """

    aggregation: str = "layerwise"
    propagation: str = "none"
    bucket: int = 16 << 20
    scaling: str = "weak"
    of: int = 1
    compression: str = "none"
    local_steps: int = 0
    local_after: int = 0
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    split_inner_products: str = "none"

    @property
    def overlaps(self) -> bool:
        """Whether any communication overlaps with computation."""
        if self.local_steps:
            return False
        return self.aggregation == "layerwise" or self.propagation in ("overlapped", "sharded")

    def check(self, gradient_dtype: str) -> None:
        """UserError where designs exclude each other. gradient_dtype: in which gradients travel."""
        compressed = self.compression != "none"
        design = f"--compression {self.compression}"
        if self.local_steps:
            design = f"--local_steps {self.local_steps}"
        elif (self.local_after, self.outer_lr, self.outer_momentum) != (0, 1, 0):
            raise UserError(
                "--local_after, --outer_lr and --outer_momentum go with --local_steps: give it, too"
            )
        if split := self.split_inner_products != "none":
            if compressed or self.local_steps or gradient_dtype != "float32":
                other = design if compressed or self.local_steps else "--gradient_type"
                raise UserError(f"--split_inner_products does not go with {other}: leave one out")
            design = "--split_inner_products"
        if not (compressed or self.local_steps or split):
            return
        if self.propagation not in ("auto", "none"):
            raise UserError(
                f"{design}: ranks propagate no weights: leave out --propagation {self.propagation}"
            )
        if compressed and gradient_dtype != "float32":
            raise UserError(
                f"--compression {self.compression} makes gradients smaller than --gradient_type "
                f"{gradient_dtype} does: leave that out"
            )
        if not 0 <= self.outer_momentum < 1 or self.outer_lr <= 0:
            raise UserError(
                "--outer_lr must be positive, and --outer_momentum at least 0 and below 1, not "
                f"{self.outer_lr:g} and {self.outer_momentum:g}"
            )


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
