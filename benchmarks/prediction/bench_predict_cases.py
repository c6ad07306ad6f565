"""What bench_predict predicts and its ranks measure: operations, sizes and designs."""

from __future__ import annotations

from osucaffe.comm.algorithms import Operation
from osucaffe.parallel.config import ParallelConfig

COLLECTIVES = (
    (Operation.ALL_REDUCE, "ring"),
    (Operation.ALL_REDUCE, "recursive_doubling"),
    (Operation.ALL_REDUCE, "halving_doubling"),
    (Operation.BROADCAST, "binomial"),
    (Operation.BROADCAST, "chain"),
    (Operation.REDUCE, "chain_binomial"),
)
SIZES = (64 << 10, 256 << 10, 1 << 20)
TRAINED = ("SC-B", "SC-OBR", "all-reduce behind", "all-reduce", "sharded")
BUCKET = 256 << 10


def config_of(design: ParallelConfig, bucket: int) -> ParallelConfig:
    """A design with buckets of so many bytes."""
    return ParallelConfig(design.aggregation, design.propagation, bucket)
