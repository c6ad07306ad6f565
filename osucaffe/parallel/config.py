"""The settings of training with several ranks: how gradients and weights are exchanged, what
parameter servers do, and the choice of settings left open."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import plugins
from ..comm.channels import KINDS
from ..comm.config import INTERFACE
from ..errors import UserError
from ..options.flags import flag, like
from ..options.kinds import COUNT, Kind, auto_or, named, not_negative, positive

if TYPE_CHECKING:
    from ..comm.communicator import Communicator

logger = logging.getLogger("osucaffe")
SPLIT = "--split_inner_products"
TUNED = -1
"""The size of buckets that are to be tuned."""
BUCKET = Kind(
    "MB",
    auto_or(lambda text: int(not_negative(text) * 2**20), TUNED, name="number"),
    lambda nbytes: "auto" if nbytes == TUNED else f"{nbytes / 2**20}",
)


@dataclass(frozen=True)
class ParallelConfig:
    """How gradients and weights are exchanged.

    aggregation may also be "buckets": bucket by bucket after backward (only predicted).
    propagation: "sharded" is the first stage of ZeRO (Rajbhandari et al., SC 2020), where a rank
    needs the sums of its own part alone; "auto": see `choose_propagation`. bucket: bytes, or TUNED.
    of: how many ranks' batches are divided with strong scaling. compression: see `choose.py`; local
    steps, split_inner_products and reproducible: `study/designs/`.
    """

    aggregation: str = flag(
        "exchange gradients after backward (blocking), or bucket by bucket during it "
        "(layerwise, the default); or as a module:Class of your own does",
        Kind("KIND", named(plugins.AGGREGATIONS, "blocking", "layerwise")),
        "layerwise",
    )
    propagation: str = flag(
        "how updated weights reach the ranks. none: each rank updates all of them; blocking, "
        "overlapped: rank 0 updates them and broadcasts before or during the next forward; "
        "sharded: each rank updates a part and all gather; auto (the default): sharded on GPUs "
        "of one host, else none",
        ("auto", "none", "blocking", "overlapped", "sharded"),
        "none",
        command="auto",
    )
    bucket: int = flag(
        "the smallest bucket: of gradients during backward, or of weights during forward; auto: "
        "try several sizes in the first iterations, and keep the fastest",
        BUCKET,
        16 << 20,
        command="16",
        name="--bucket_mb",
    )
    scaling: str = flag(
        "weak scaling: batch_size is per rank (the default); strong: it is divided among the ranks",
        ("weak", "strong"),
        "weak",
        name="--scal",
    )
    of: int = 1
    compression: str = flag(
        "compress gradients, and add the error to the next ones (error feedback). topk:SHARE, "
        "randomk:SHARE: send the largest, or a random, share of them; powersgd:RANK: matrices of "
        "low rank; 8bit; sign: one bit per element (default: none); or your own "
        "module:Class",
        "KIND",
        "none",
    )
    local_steps: int = flag(
        "exchange no gradients, but average the ranks' weights after each H iterations",
        Kind("H", positive),
        0,
    )
    local_after: int = flag("with --local_steps: until iteration N, after each one", COUNT, 0)
    outer_lr: float = flag(
        "with --local_steps: the learning rate of the step from the last common weights to the "
        "new mean (default: 1, the mean itself; DiLoCo: 0.7)",
        Kind("LR", not_negative),
        1.0,
    )
    outer_momentum: float = flag(
        "with --local_steps: Nesterov's momentum of that step (default: 0; DiLoCo: 0.9)",
        Kind("M", not_negative),
        0.0,
    )
    split_inner_products: str = flag(
        "divide the weights of these InnerProduct layers among the ranks, and send activations, "
        "not gradients: names, separated by commas, or auto: those for which that is less",
        "NAMES",
        "none",
    )
    reproducible: bool = flag(
        "sum gradients so that bucket size, algorithm and communicator change no bit of the sum, "
        "nor the number of ranks, as long as ranks x iter_size stays the same"
    )

    @property
    def brought(self) -> bool:
        """Whether gradients are exchanged in a way that is not osucaffe's own."""
        return self.aggregation not in ("blocking", "layerwise", "buckets")

    @property
    def hooked(self) -> str:
        """The options by which all ranks update all weights from sums of their own kind."""
        if self.local_steps:
            return f"--local_steps {self.local_steps}"
        if self.compression != "none":
            return f"--compression {self.compression}"
        return "--reproducible" if self.reproducible else ""

    @property
    def overlaps(self) -> bool:
        """Whether any communication overlaps with computation."""
        if self.local_steps:
            return False
        return (
            self.aggregation == "layerwise"
            or self.brought
            or self.propagation in ("overlapped", "sharded")
        )

    def check(self, gradient_dtype: str) -> None:
        """UserError where designs exclude each other. gradient_dtype: in which gradients travel."""
        design, outer = self.hooked, (self.local_after, self.outer_lr, self.outer_momentum)
        if not self.local_steps and outer != (0, 1, 0):
            raise UserError("--local_after, --outer_lr and --outer_momentum require --local_steps")
        if self.brought and (design or self.split_inner_products != "none"):
            raise UserError(
                f"--aggregation {self.aggregation} cannot be combined with "
                f"{design or '--split_inner_products'}"
            )
        if self.split_inner_products != "none":
            other = design or ("--gradient_type" if gradient_dtype != "float32" else "")
            if other:
                raise UserError(f"--split_inner_products cannot be combined with {other}")
            design = "--split_inner_products"
        if not design:
            return
        if self.reproducible and design != "--reproducible":
            raise UserError(f"--reproducible sums gradients as they are: leave it out, or {design}")
        if self.propagation not in ("auto", "none"):
            raise UserError(
                f"{design}: ranks propagate no weights: leave out --propagation {self.propagation}"
            )
        if (self.compression != "none" or self.reproducible) and gradient_dtype != "float32":
            raise UserError(
                f"{design} uses its own gradient encoding: remove --gradient_type {gradient_dtype}"
            )
        if not 0 <= self.outer_momentum < 1 or self.outer_lr <= 0:
            raise UserError(
                "--outer_lr must be positive, and --outer_momentum at least 0 and below 1, not "
                f"{self.outer_lr:g} and {self.outer_momentum:g}"
            )


CHANNEL_WAIT = flag(
    "how to wait for a message: sleep after a few polls, or keep polling (busy), which is faster "
    "with more cores than threads",
    {"sleep": False, "busy": True},
    False,
    command="sleep",
    name="--channel_wait",
)


@dataclass(frozen=True)
class ServerConfig:
    """How many ranks serve, when weights are updated, and how messages travel. consistency: see
    `study/servers/shards.py: Consistency`."""

    servers: int = flag(
        "parameter servers: the last K of the ranks do not train, but hold and update the weights",
        Kind("K", positive),
        0,
        excluded_by=("--find_lr", "--elastic", "--ranks_per_gpu"),
    )
    consistency: str = flag(
        "with --servers: average all workers' gradients (sync, the default); ignore the slowest B "
        "(backup:B); update with each worker's, none more than N iterations ahead of another "
        "(ssp:N), or without a bound (async)",
        "KIND",
        "sync",
    )
    channel: str = flag("with --servers: what carries the messages", KINDS, "mpi")
    busy: bool = like(CHANNEL_WAIT)
    interface: str | None = like(INTERFACE)


def choose_propagation(comm: Communicator, *, separable: bool) -> str:
    """What "auto" means with this communicator; a log line states the choice and the reason.

    separable: the update of a part needs no sum over all gradients. Sharded by copy engines was the
    fastest, or as fast as any, for each net that was tried on H200s, in bf16
    (benchmarks/results/scaling-*.md).
    """
    from ..comm.gpu.on_stream import OnStream

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
