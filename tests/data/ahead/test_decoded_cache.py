"""Decoded records that stay are shared with the processes that read."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np

from osucaffe.data.ahead.decoded_cache import DecodedCache

ROOT = Path(__file__).parents[3]


def test_processes_share_them() -> None:
    kept = DecodedCache(3, (2, 4, 5), interleaved=True)
    image = np.arange(40, dtype=np.uint8).reshape(2, 4, 5)
    kept.put(1, image, 7)
    child = """
import pickle, sys
kept = pickle.load(sys.stdin.buffer)
assert kept.has.tolist() == [False, True, False], kept.has
kept.put(2, kept.images[1] + 1, int(kept.labels[1]) + 1)
"""
    content = pickle.dumps(kept)
    assert len(content) < 1000  # what they hold is not sent
    subprocess.run([sys.executable, "-c", child], input=content, check=True, cwd=ROOT)
    assert kept.has.tolist() == [False, True, True]
    assert kept.labels[2] == 8
    assert np.array_equal(kept.images[2], image + 1)


def test_others_are_not_kept() -> None:
    kept = DecodedCache(2, (1, 2, 2), interleaved=False)
    kept.put(0, np.zeros((1, 3, 2), np.uint8), 1)
    kept.put(1, np.zeros((1, 2, 2), np.float32), 1)
    assert not kept.has.any()
