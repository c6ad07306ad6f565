"""Owns what the tests of the Python interface share: a fixed seed, and no log on the screen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import osucaffe.pycaffe as caffe
from osucaffe.pycaffe import settings


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """Every test begins with the same seed and leaves none behind."""
    caffe.set_mode_cpu()
    caffe.set_random_seed(5)
    yield
    settings._Settings.seed = None
