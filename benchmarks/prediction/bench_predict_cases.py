"""Owns what bench_predict predicts and its ranks measure: operations, sizes and designs."""

from __future__ import annotations

from osucaffe.parallel.config import ParallelConfig

COLLECTIVES = (
    ("all_reduce", "ring"),
    ("all_reduce", "recursive_doubling"),
    ("all_reduce", "halving_doubling"),
    ("broadcast", "binomial"),
    ("broadcast", "chain"),
    ("reduce", "chain_binomial"),
)
SIZES = (64 << 10, 256 << 10, 1 << 20)
TRAINED = ("SC-B", "SC-OBR", "all-reduce behind", "all-reduce", "sharded")
BUCKET = 256 << 10


def config_of(design: ParallelConfig, bucket: int) -> ParallelConfig:
    """A design with buckets of so many bytes."""
    return ParallelConfig(design.aggregation, design.propagation, bucket)
