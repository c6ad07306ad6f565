"""Tests of the losses that stay with the backend until one is shown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.tensor import Tensor
from osucaffe.solvers.losses import Losses, mean
from osucaffe.solvers.process_group import ProcessGroup


def gpu() -> Any:
    from osucaffe.backends.cuda import Cuda

    return Cuda()


@pytest.fixture(params=[Cpu, pytest.param(gpu, marks=pytest.mark.gpu)], ids=["cpu", "cuda"])
def backend(request: pytest.FixtureRequest) -> Any:
    return request.param()


def scalar(backend: Any) -> Tensor:
    tensor = Tensor((), persistent=True)
    backend.place(tensor, backend.allocate(backend.nbytes(tensor)), 0)
    return tensor


def test_iterations_are_means_of_their_passes(backend: Any) -> None:
    losses = Losses(backend, ProcessGroup(), length=3, parts=2)
    net = SimpleNamespace(total=scalar(backend))
    assert np.isnan(mean(losses.shown))
    for values, recent in [
        ([1, 2, 3, 5, 7, 8], [1.5, 4, 7.5]),
        ([0, 1], [4, 7.5, 0.5]),
        ([], [4, 7.5, 0.5]),
    ]:
        for index, value in enumerate(values):
            backend.write(net.total, np.float32(value))
            losses.note(net, index % 2)
        losses.read()
        assert list(losses.recent) == recent
        assert mean(losses.shown) == sum(recent) / 3
    for part in 0, 0, 1:  # the first iteration was broken off
        losses.note(net, part)
    losses.reset([6.0])
    losses.read()
    assert list(losses.recent) == [6]
    for part in [0, 0, 1] + [0, 1] * 3:  # one more than there is room for
        losses.note(net, part)
    losses.read()
    assert list(losses.recent) == [1, 1, 1]


def test_a_net_without_a_loss_has_none(backend: Any) -> None:
    losses = Losses(backend, ProcessGroup(), length=2, parts=1)
    losses.note(SimpleNamespace(total=Tensor((), persistent=True)), 0)
    losses.read()
    assert mean(losses.shown) == 0
