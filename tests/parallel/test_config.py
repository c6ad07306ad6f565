"""What data-parallel training chooses by itself."""

from __future__ import annotations

import logging

import pytest

from osucaffe.comm.communicator import Serial
from osucaffe.comm.gpu.copy_engine import CopyEngine
from osucaffe.comm.gpu.nccl import Nccl
from osucaffe.parallel.config import choose_propagation


@pytest.mark.parametrize(
    ("kind", "separable", "chosen", "told"),
    [
        (CopyEngine, True, "sharded", "--propagation sharded --comm copy"),
        (CopyEngine, False, "none", "clipping, or a loss scale"),
        (Nccl, True, "none", "copy engines do not move them"),
        (Serial, True, "none", ""),
    ],
)
def test_propagation(
    kind: type, separable: bool, chosen: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    comm = object.__new__(kind)  # it is only asked what it is
    with caplog.at_level(logging.INFO, logger="osucaffe"):
        assert choose_propagation(comm, separable=separable) == chosen
    assert told in caplog.text
