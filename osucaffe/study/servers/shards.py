"""How parameters are divided among servers, the description of a server's part, and how far
workers may drift apart.

Small buckets go undivided to the server that has least so far; others are divided among all of
them, regardless of blobs. So each server holds, receives and sends about the same number of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...arena import ALIGNMENT, Arena, Parameter
from ...backends.backend import Backend
from ...blob import Blob
from ...comm.algorithms import part
from ...errors import UserError
from ...parallel.buckets import ITEM, Bucket, Layout, NetLayout, find_buckets
from ...parallel.config import ParallelConfig
from ...solvers.update.rules import Update

MAX_UNDIVIDED = 64 << 10
"""Bytes of the largest bucket that is not divided: below, latency outweighs bandwidth."""


class Piece(NamedTuple):
    """Elements start .. stop - 1 of the arena: part of a bucket, on one server (from 0)."""

    bucket: int
    server: int
    start: int
    stop: int


def divide(buckets: Sequence[Bucket], servers: int) -> list[Piece]:
    """The pieces of all buckets, in their order; a piece's index is the tag of its messages."""
    pieces: list[Piece] = []
    held = [0] * servers
    for index, bucket in enumerate(buckets):
        if bucket.nbytes <= MAX_UNDIVIDED:
            ranges = {held.index(min(held)): (bucket.start, bucket.stop)}
        else:
            grains = (bucket.stop - bucket.start) // ALIGNMENT
            cuts = [part(grains, servers, server) for server in range(servers)]
            ranges = {
                server: (bucket.start + first * ALIGNMENT, bucket.start + last * ALIGNMENT)
                for server, (first, last) in enumerate(cuts)
            }
        for server, (start, stop) in ranges.items():
            held[server] += stop - start
            pieces.append(Piece(index, server, start, stop))
    return pieces


def divide_net(
    net: Layout, config: ParallelConfig, servers: int
) -> tuple[list[Bucket], list[Piece]]:
    """A net's buckets, and the pieces of that many servers. UserError where one has none."""
    nbytes = config.bucket if config.aggregation == "layerwise" else len(net.arena) * ITEM
    buckets = find_buckets(net, nbytes, frozen=False)
    pieces = divide(buckets, servers)
    if (used := len({piece.server for piece in pieces})) < servers:
        raise UserError(
            f"--servers {servers}: this net's weights suffice for only {used}: use that many"
        )
    return buckets, pieces


class Segment(NamedTuple):
    """Elements with the multipliers of one parameter."""

    elements: int
    lr_mult: float
    decay_mult: float


class Part(NamedTuple):
    """The description of a server's part: pieces by their tags, and the update."""

    pieces: dict[int, list[Segment]]
    update: Update


def describe_part(net: NetLayout, update: Update, pieces: Sequence[Piece], server: int) -> Part:
    """The description to send to a server. Workers send the learning rate, with all factors."""
    segments = {tag: _segments(net, p) for tag, p in enumerate(pieces) if p.server == server}
    return Part(segments, replace(update, rate=_rate_as_sent))


def _rate_as_sent(rate: float, iteration: int) -> float:
    return rate


def _segments(net: NetLayout, piece: Piece) -> list[Segment]:
    cuts = [
        (min(stop, piece.stop) - max(start, piece.start), parameter)
        for start, stop, parameter in net.arena.segments
    ]
    return [Segment(n, parameter.lr_mult, parameter.decay_mult) for n, parameter in cuts if n > 0]


class Shard:
    """The weights of a server, as an optimizer takes them: a net without layers.

    ranges: the range of each piece in its arena, by tag.
    """

    splitter = None

    def __init__(self, backend: Backend, pieces: dict[int, list[Segment]]) -> None:
        self.ranges: dict[int, tuple[int, int]] = {}
        self.parameters: list[Parameter] = []
        offset = 0
        for tag, segments in pieces.items():
            start = offset
            for count, lr_mult, decay_mult in segments:
                blob = Blob(f"piece {tag}", (count,), persistent=True)
                self.parameters.append(Parameter(blob.name, "", tag, blob, lr_mult, decay_mult))
                offset += count
            self.ranges[tag] = start, offset
        self.arena = Arena(backend, self.parameters, gradients=True)


@dataclass(frozen=True)
class Consistency:
    """How far workers may drift apart.

    bound: the most iterations that a worker may be ahead of another; None: any number.
    together: updates are of the sum of all workers' gradients, so training is as with one process;
    with backups, without the last that many, which are dropped (Chen et al., 2016).
    """

    bound: int | None
    together: bool = False
    backups: int | None = None

    @classmethod
    def parse(cls, text: str) -> Consistency:
        """sync, backup:B, ssp:N or async. UserError for anything else."""
        kind, _, bound = text.partition(":")
        if text == "sync":
            return cls(0, together=True)
        if text == "async":
            return cls(None)
        if kind == "backup" and bound.isdecimal():
            return cls(None, together=True, backups=int(bound))
        if kind == "ssp" and bound.isdecimal():
            return cls(int(bound))
        raise UserError(
            f"--consistency {text}: choose sync, async, ssp:N with N the most iterations that a "
            "worker may be ahead of another, or backup:B with B the number of gradients to ignore "
            "in each iteration"
        )
