"""A worker's side of the parameter servers, with gradients and weights of a device."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.tensor import Tensor
from osucaffe.comm.channels.channel import Channel
from osucaffe.parallel.buckets import Bucket
from osucaffe.study.servers.server import CONTROL, PUSH
from osucaffe.study.servers.shards import Part, divide
from osucaffe.study.servers.worker import ServerClient
from tests.comm import deferred

COUNT, ITERATIONS = 40, 5
BUCKETS = [Bucket(0, 24, 1), Bucket(24, COUNT, 0)]


class Server(Channel):
    """One that takes rate x gradient off its weights for each gradient, without a network."""

    def __init__(self) -> None:
        super().__init__(0, 2)
        self.weights: dict[int, np.ndarray] = {}
        self.rate = 0.0
        self.ready: dict[int, deque[np.ndarray]] = {}
        self.lock = threading.Lock()

    def send(self, arrays: Sequence[np.ndarray], to: int, tag: int) -> Any:
        (values,) = arrays
        with self.lock:
            if tag != CONTROL:
                known = self.weights.get(tag)
                self.weights[tag] = values.copy() if known is None else known - self.rate * values
                if known is not None:
                    self.ready.setdefault(tag, deque()).append(self.weights[tag].copy())
            elif values.dtype == np.float64 and values[0] == PUSH:
                self.rate = float(values[1])
        return None

    def receive(self, arrays: Sequence[np.ndarray], source: int, tag: int) -> Any:
        return arrays[0], tag

    def complete(self, requests: Sequence[Any]) -> list[int]:
        done = []
        with self.lock:
            for index, request in enumerate(requests):
                if request is not None and request[1] != CONTROL:
                    if not self.ready.get(request[1]):
                        continue
                    request[0][:] = self.ready[request[1]].popleft()
                done.append(index)
        return done

    def close(self) -> None:
        pass


@pytest.mark.parametrize("device", [False, True])
def test_what_is_computed_next_has_the_weights_of_what_was_computed_last(
    device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", deferred)
    deferred.allocated.clear()
    first = np.linspace(1, 2, COUNT, dtype=np.float32)
    weights, gradients = first.copy(), np.zeros(COUNT, np.float32)
    tensors = [Tensor((COUNT,), name="weights"), Tensor((COUNT,), name="gradients")]
    for tensor, values in zip(tensors, (weights, gradients), strict=True):
        tensor.array = deferred.Array(values) if device else values
    stream = deferred.Stream()
    channel, pieces = Server(), divide(BUCKETS, 1)
    pushing = ServerClient(channel, [1], BUCKETS, pieces, *tensors)
    part = Part({tag: [] for tag in range(len(pieces))}, None)
    pushing.set_up(0, part, tensors[:1])
    assert deferred.allocated == ([first.nbytes] * 2 if device else [])

    def compute(bucket: Bucket) -> None:
        """As backward does: a gradient from the weights as they are."""
        inside = slice(bucket.start, bucket.stop)
        gradients[inside] = 2 * weights[inside]

    for _ in range(ITERATIONS):
        for index, bucket in enumerate(BUCKETS):
            assert pushing.wait(index, stream) or (weights == first).all()
            assert not pushing.wait(index, stream), "they are new once"
            stream.enqueue(lambda bucket=bucket: compute(bucket))
            if not device:
                stream.run()
            pushing.push(index, 0.25, stream)
    for index in range(len(BUCKETS)):
        pushing.wait(index, stream)
    stream.synchronize()
    pushing.stop()
    np.testing.assert_allclose(weights, first * 0.5**ITERATIONS, rtol=1e-6)
    assert len(deferred.allocated) == (2 if device else 0), "a steady iteration allocates"
