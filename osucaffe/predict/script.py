"""Owns scripts: what a rank does in an iteration, as the code that trains does it.

`DataParallel` runs on a sketch of the net, with a communicator that only notes what is asked of it.
So when things travel is decided by the same lines as in training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from ..backends.tensor import Step
from ..comm.communicator import Communicator, Handle
from ..parallel.config import ParallelConfig
from ..parallel.data_parallel import DataParallel
from .sketch import Sketch


class Compute(NamedTuple):
    """A layer's turn; direction: forward or backward."""

    direction: str
    layer: int


class Update(NamedTuple):
    """So many parameters get their new values."""

    elements: int


class Post(NamedTuple):
    """A collective operation is asked for. number: in the script."""

    number: int
    operation: str
    elements: int
    root: int


class Wait(NamedTuple):
    """The caller waits for it."""

    number: int


Script = list[Any]
"""Of events; those of servers, too."""


class Notebook(Communicator):
    """Notes what rank 0 of `size` asks for. part: as the communicator to come divides arrays."""

    def __init__(
        self, size: int, part: Callable[[int, int], tuple[int, int]], *, background: bool
    ) -> None:
        super().__init__(0, size, level="network", background=background)
        self.script: Script = []
        self._part = part

    def part(self, count: int, rank: int | None = None) -> tuple[int, int]:
        return self._part(count, self.rank if rank is None else rank)

    def _collective(self, operation: str, array: Any, root: int, stream: Any) -> Handle:
        if self.size == 1 or not array.size:
            return Handle()
        number = len(self.script)
        self.script.append(Post(number, operation, array.size, root))
        return _Noted(self.script, number)

    def run(self, operation: str, array: Any, root: int = 0) -> None:
        raise NotImplementedError

    def transfer(self, array: Any, *, to: int | None = None, source: int | None = None) -> None:
        raise NotImplementedError


class _Noted(Handle):
    def __init__(self, script: Script, number: int) -> None:
        self._script, self._number = script, number

    def wait(self, stream: Any = None) -> None:
        self._script.append(Wait(self._number))


class Planned(DataParallel):
    """A group whose ranks are not there."""

    def __init__(self, comm: Communicator, config: ParallelConfig, sketch: Sketch) -> None:
        self.rank, self.size = 0, comm.size
        self._config = config
        self.comm = comm
        notebook: Any = comm

        def update(count: int) -> Step:
            return lambda: notebook.script.append(Update(count))

        optimizer = SimpleNamespace(
            separable=True,
            part=lambda start, stop: update(stop - start),
            steps=[update(len(sketch.arena))],
            take_rate=lambda: None,
            flats=(),
        )
        solver: Any = SimpleNamespace(
            net=sketch, test_nets=(), optimizer=optimizer, loss_scale=None, backend=sketch.backend
        )
        self.attach(solver)
        self._planned: Any = solver

    def record(self, passes: int) -> Script:
        """What rank 0 does in an iteration of so many passes, with others before it."""
        notebook: Any = self.comm
        solver = self._planned
        solver.net.told = lambda direction, layer: notebook.script.append(Compute(direction, layer))
        steps = [
            self.step(solver, accumulate=each > 0, update=each == passes - 1)
            for each in range(passes)
        ]
        for _ in range(2):  # behind the first one weights are to be sent
            notebook.script.clear()
            for step in steps:
                step()
        return list(notebook.script)


def is_beside(config: ParallelConfig) -> bool:
    """Whether anything travels while the caller goes on."""
    return bool({config.aggregation, config.propagation} & {"layerwise", "overlapped", "sharded"})


def record(
    sketch: Sketch,
    config: ParallelConfig,
    size: int,
    part: Callable[[int, int], tuple[int, int]],
    passes: int = 1,
) -> Script:
    """The script of rank 0 of `size`. A rank that has nobody to talk to waits for nobody."""
    if size == 1:
        config = replace(config, propagation="none", aggregation="blocking")
    return Planned(Notebook(size, part, background=is_beside(config)), config, sketch).record(
        passes
    )
