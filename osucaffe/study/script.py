"""Owns scripts: the events of a rank in an iteration, recorded from the training code.

The exchanges of `parallel/` run with the passes of a sketch of the net, and a communicator that
only records calls. So the same code as in training decides what is sent when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ..arena import Arena
from ..backends.tensor import Run, Tensor, sequence
from ..comm.communicator import Communicator, Handle
from ..comm.job.job import Job
from ..parallel.config import ParallelConfig
from ..parallel.exchange import Collectives, Exchange
from ..parallel.servers.shards import Piece, divide_net
from ..parallel.servers.training import ServerExchange
from .plan import Extent
from .sketch import Sketch


class Compute(NamedTuple):
    """A layer computes; direction: forward or backward."""

    direction: str
    layer: int


class Update(NamedTuple):
    """This many parameters are updated."""

    elements: int


class Post(NamedTuple):
    """A collective operation is posted. number: in the script."""

    number: int
    operation: str
    elements: int
    root: int


class Wait(NamedTuple):
    """The caller waits for it."""

    number: int


Pieces = tuple[tuple[int, int], ...]
"""(server from 0, elements of a bucket) pairs."""


class Push(NamedTuple):
    """A bucket's gradients are sent."""

    bucket: int
    pieces: Pieces


class Pull(NamedTuple):
    """The caller waits for the weights of a bucket's last push."""

    bucket: int


Script = list[Any]
"""Of events."""


class Notebook(Communicator):
    """Records the calls of rank 0 of `size`. part: how the modelled communicator divides arrays."""

    def __init__(
        self, size: int, part: Callable[[int, int], tuple[int, int]], script: Script
    ) -> None:
        super().__init__(0, size, level="network")
        self._part, self._script = part, script

    def part(self, count: int, rank: int | None = None) -> tuple[int, int]:
        return self._part(count, self.rank if rank is None else rank)

    def _collective(self, operation: str, array: Any, root: int, stream: Any) -> Handle:
        if self.size == 1 or not array.size:
            return Handle()
        number = len(self._script)
        self._script.append(Post(number, operation, array.size, root))
        return _Noted(self._script, number)

    def run(self, operation: str, array: Any, root: int = 0) -> None:
        raise NotImplementedError


class _Noted(Handle):
    def __init__(self, script: Script, number: int) -> None:
        self._script, self._number = script, number

    def wait(self, stream: Any = None) -> None:
        self._script.append(Wait(self._number))


class NotedUpdate:
    """Stands for an optimizer: notes what is updated."""

    rate = 0.0
    flats: tuple[Tensor, ...] = ()

    def __init__(self, arena: Arena, script: Script, *, separable: bool) -> None:
        self._arena, self._script, self.separable = arena, script, separable
        self.steps: list[Run] = [self.part(0, len(arena))]

    def part(self, start: int, stop: int) -> Run:
        elements = sum(last - first for first, last, _ in self._arena.owned(start, stop))
        return lambda: self._script.append(Update(elements))


def play(
    sketch: Sketch,
    exchange: Exchange,
    script: Script,
    passes: int,
    comm: Communicator | None = None,
) -> Script:
    """The script of an iteration of some passes, with others before it: hooks in their order, as
    `Net.whole` runs them, and each layer's turn.

    script: to which the exchange adds what it does. comm: what layers of the sketch ask for
    operations, of which the first comes ahead of what the layer computes.
    """

    def ask(operation: str, elements: int) -> None:
        getattr(comm, operation)(Extent(elements)).wait()

    def turn(direction: str, layer: int) -> None:
        asked = sketch.collectives.get((direction, layer), ())
        events: list[Run] = [partial(ask, *each) for each in asked]
        events.insert(1, partial(script.append, Compute(direction, layer)))
        sequence(events)()

    hooks = []
    for number in range(passes):
        update = number == passes - 1
        before, after = exchange.hooks(accumulate=number > 0, update=update)
        hooks.append((before, after, [*exchange.finish(after), exchange.updated] if update else []))
    layers = range(len(sketch.layers))
    for _ in range(2):  # from the second on, weights are sent
        script.clear()
        for before, after, then in hooks:
            for layer in layers:
                if layer in before:
                    before[layer]()
                turn("forward", layer)
            for layer in reversed(layers):
                turn("backward", layer)
                if layer in after:
                    after[layer]()
            for step in then:
                step()
    return script


def record(
    sketch: Sketch,
    config: ParallelConfig,
    size: int,
    part: Callable[[int, int], tuple[int, int]],
    passes: int = 1,
    *,
    separable: bool = True,
) -> Script:
    """The script of rank 0 of `size`. A rank that has nobody to talk to waits for nobody."""
    if size == 1:
        config = replace(config, propagation="none", aggregation="blocking")
    script: Script = []
    notebook = Notebook(size, part, script)
    update = NotedUpdate(sketch.arena, script, separable=separable)
    return play(sketch, Collectives(notebook, sketch, update, config), script, passes, notebook)


class NotedLink:
    """Notes what a worker pushes and waits for. pieces: of all buckets."""

    def __init__(self, pieces: Sequence[Piece], script: Script) -> None:
        self._pieces, self._script = pieces, script

    def push(self, bucket: int, rate: float, stream: Any = None) -> None:
        pieces_of_bucket = [piece for piece in self._pieces if piece.bucket == bucket]
        pieces = tuple((piece.server, piece.stop - piece.start) for piece in pieces_of_bucket)
        self._script.append(Push(bucket, pieces))

    def wait(self, bucket: int, stream: Any = None) -> bool:
        self._script.append(Pull(bucket))
        return False

    def read(self, which: int, flat: Tensor) -> None:
        """Nothing is read between iterations."""


def record_served(
    sketch: Sketch,
    config: ParallelConfig,
    workers: int,
    servers: int,
    passes: int = 1,
    *,
    separable: bool = True,
) -> Script:
    """The script of a worker. UserError where servers have no work."""
    script: Script = []
    buckets, pieces = divide_net(sketch, config, servers)
    exchange = ServerExchange(
        Job(),
        sketch,
        NotedUpdate(sketch.arena, script, separable=separable),
        NotedLink(pieces, script),
        buckets,
        range(workers, workers + servers),
        layerwise=config.aggregation == "layerwise",
        together=True,
    )
    return play(sketch, exchange, script, passes)
