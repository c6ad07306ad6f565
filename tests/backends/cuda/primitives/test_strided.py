"""Tensors under other shapes, where they lie: as NumPy sees arrays without copying them."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.passes import convert
from osucaffe.backends.cuda.primitives import strided
from osucaffe.backends.cuda.primitives.strided import seen_strides
from tests.backends import test_primitives  # noqa: F401 (fills CASES)
from tests.backends.cases import CASES, Case
from tests.backends.running import run_call

from ..executed import execute
from ..simulated import simulate

PERMUTED = [case for case in CASES if case.name == "permute"]
ROW_MAJOR, CHANNELS_LAST = (0, 1, 2, 3), (0, 2, 3, 1)


def _factors(draw: random.Random, count: int) -> list[int]:
    """Some that make so many, and ones between them."""
    found = []
    while count > 1:
        found.append(draw.choice([each for each in range(2, count + 1) if count % each == 0]))
        count //= found[-1]
        found += [1] * (draw.random() < 0.3)
    return found or [1]


def test_strides_are_those_that_numpy_finds() -> None:
    draw, found = random.Random(1), 0
    for _ in range(3000):
        shape = tuple(draw.choice([1, 2, 3, 4, 6]) for _ in range(4))
        order = draw.choice([ROW_MAJOR, CHANNELS_LAST])
        array = np.arange(np.prod(shape), dtype=np.int8).reshape([shape[axis] for axis in order])
        array = array.transpose(np.argsort(order))
        seen = tuple(_factors(draw, array.size))
        got = seen_strides(shape, array.strides, seen)
        whole = array.reshape(seen)
        shares = np.shares_memory(whole, array)
        assert (got is not None) == shares
        if got is not None:
            found += 1
            view = np.lib.stride_tricks.as_strided(array, seen, got)
            np.testing.assert_array_equal(view, whole)
    assert found > 1000


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("case", PERMUTED, ids=lambda case: case.label or "plain")
def test_axes_are_permuted(case: Case, flexible: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row-major, and with the channels last."""
    simulate(monkeypatch)
    execute(monkeypatch)
    for module in convert, strided:
        monkeypatch.setattr(module, "blocks_for", lambda count: 1)
    backend = Cuda(precision="fp32")
    found = run_call(backend, case.name, case.tensors, case.settings, flexible=flexible)
    np.testing.assert_array_equal(found["y"], case.expected["y"].astype(np.float32))
