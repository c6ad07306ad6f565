"""A stand-in for CUDA graphs on the emulated GPU (emulated.py): what launches while one is
captured is noted with the addresses of that time, and launched with these at each replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from osucaffe.backends.cuda import graphs

from .emulated import ComputingCudnn, ComputingProducts, emulate
from .executed import Executed
from .simulated import fake_cupy

Launch = Callable[[], Any]


class Graph:
    """What was launched."""

    def __init__(self, launches: list[Launch]) -> None:
        self._launches = launches

    def launch(self, stream: Any) -> None:
        for each in self._launches:
            each()


def emulate_graphs(monkeypatch: pytest.MonkeyPatch, precision: str) -> Any:
    """A backend as of `emulate` that captures graphs and replays them."""
    backend = emulate(monkeypatch, precision)
    backend.graphs = True
    capturing: list[list[Launch]] = []

    def noted(run: Callable[..., Any]) -> Callable[..., Any]:
        def launch(*given: Any, **named: Any) -> None:
            if capturing:
                capturing[-1].append(lambda: run(*given, **named))
            else:
                run(*given, **named)

        return launch

    def captured(stream: Any, run: Launch) -> Graph:
        capturing.append([])
        run()
        return Graph(capturing.pop())

    monkeypatch.setattr(graphs, "captured", captured)
    monkeypatch.setattr(Executed, "__call__", noted(Executed.__call__))
    for name in "memcpyAsync", "memcpy2DAsync", "memsetAsync":
        runtime = fake_cupy().cuda.runtime
        monkeypatch.setattr(runtime, name, noted(getattr(runtime, name)))
    for library, method in (ComputingCudnn, "_plan"), (ComputingProducts, "algorithm"):
        make = getattr(library, method)

        def plan(*asked: Any, make: Callable[..., Any] = make) -> Any:
            made = make(*asked)
            made.execute = noted(made.execute)
            return made

        monkeypatch.setattr(library, method, plan)
    return backend
