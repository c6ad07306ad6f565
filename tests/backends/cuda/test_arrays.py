"""Arrays that are computed with outside of steps: on a stream of their own, by any thread."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda


@pytest.fixture
def done() -> list[str]:
    """What was done, in its order."""
    return []


@pytest.fixture
def gpu(done: list[str]) -> Any:
    """A GPU whose thread uses a stream "theirs"."""
    current = []

    class Stream:
        def __init__(self, name: str = "arrays", non_blocking: bool = False) -> None:
            self.name = name

        def use(self) -> None:
            done.append(f"use {self.name}")
            current[:] = [self]

        def synchronize(self) -> None:
            done.append(f"synchronize {self.name}")

    current.append(Stream("theirs"))
    cuda = SimpleNamespace(Stream=Stream, get_current_stream=lambda: current[0])
    made = Cuda.__new__(Cuda)
    made.cupy = SimpleNamespace(cuda=cuda)
    made.device = SimpleNamespace(use=lambda: done.append("choose the GPU"))
    return made


def test_they_are_complete_at_the_end(gpu: Any, done: list[str]) -> None:
    with gpu.computing_arrays(gpu.array_stream()):
        done.append("compute")
    assert done == ["choose the GPU", "use arrays", "compute", "synchronize arrays", "use theirs"]


def test_the_threads_stream_comes_back_after_an_exception(gpu: Any, done: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), gpu.computing_arrays(gpu.array_stream()):
        raise ZeroDivisionError
    assert done == ["choose the GPU", "use arrays", "use theirs"]


def test_the_host_has_no_streams() -> None:
    backend = Cpu(onednn=False)
    with backend.computing_arrays(backend.array_stream()):
        assert backend.xp.zeros(2).tolist() == [0, 0]
