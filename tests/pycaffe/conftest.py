"""What the tests of the Python interface share: a fixed seed, and no log on the screen."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import osucaffe.pycaffe as caffe
from osucaffe.pycaffe import settings

from .nets import FUSED, write


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """Every test begins with the same seed and leaves none behind; a first net that finds a handler
    starts no log, which would take the lines away from pytest."""
    logging.getLogger("osucaffe").addHandler(logging.NullHandler())
    caffe.set_mode_cpu()
    caffe.set_random_seed(5)
    yield
    settings._Settings.seed = None


@pytest.fixture
def nets(tmp_path: Path) -> tuple[caffe.Net, caffe.Net]:
    """A net, and one of the same parameters that never takes the fast way."""
    path = write(tmp_path, FUSED)
    net, plain = caffe.Net(path, caffe.TEST), caffe.Net(path, caffe.TEST)
    plain._forward_only = None
    for name, blobs in net.params.items():
        for i, blob in enumerate(blobs):
            if name == "bn":
                blob.data[...] = np.random.default_rng(i).uniform(0.5, 1.5, blob.data.shape)
            plain.params[name][i].data[...] = blob.data
    return net, plain
