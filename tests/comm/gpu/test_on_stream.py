"""Operations on a stream of their own: behind what the caller's has got, and ahead of who waits."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.comm.communicator import DONE
from osucaffe.comm.gpu.on_stream import OnStream

from ..streams import Device, Event, array, run


class Doubling(OnStream):
    """Doubles the array, in a few steps."""

    def __init__(self, device: Device, size: int = 2) -> None:
        self.rank, self.size, self.stream = 0, size, device.stream()
        self._cupy = SimpleNamespace(cuda=SimpleNamespace(Event=Event))

    def enqueue(self, operation: str, array: Any, root: int, stream: Any) -> None:
        for index in range(array.size):
            stream.put(lambda index=index: array[index : index + 1].__imul__(2))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("other", [False, True])
def test_it_begins_behind_its_stream_and_a_stream_waits(seed: int, other: bool) -> None:
    """The stream that asked, or (other) another one."""
    device, flat, seen = Device(), array(np.zeros(9, np.float32)), []
    comm, stream, waiting = Doubling(device), device.stream(), device.stream()
    for value in range(1, 4):
        stream.put(lambda value=value: flat.fill(value))
        handle = comm.all_reduce(flat, stream=stream)
        handle.wait(waiting if other else None)
        (waiting if other else stream).put(lambda: seen.append(np.array(flat)))
        if other:  # who overwrites the array must wait, too
            done = Event()
            done.record(waiting)
            stream.wait_event(done)
    run([device], random.Random(seed))
    np.testing.assert_array_equal(seen, [[2.0] * 9, [4.0] * 9, [6.0] * 9])


def test_what_has_nothing_to_do_is_done() -> None:
    device = Device()
    stream = device.stream()
    assert Doubling(device, 1).all_reduce(array(np.ones(3, np.float32)), stream=stream) is DONE
    assert Doubling(device).all_gather(array(np.ones(0, np.float32)), stream=stream) is DONE
    assert not any(device.queues)


def test_bad_calls_are_refused() -> None:
    device = Device()
    comm, stream = Doubling(device), device.stream()
    with pytest.raises(ValueError, match="no rank 2 among 2"):
        comm.broadcast(array(np.ones(3, np.float32)), 2, stream=stream)
    with pytest.raises(ValueError, match="flat contiguous"):
        comm.all_reduce(array(np.ones((3, 3), np.float32)), stream=stream)
