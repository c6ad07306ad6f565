"""The expected values that are stored for where there is no reference: two projections of each
and how far rounding moves them. `python -m tests.differential.stored` writes them anew."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np

from osucaffe.backends.cpu import Cpu

from .compare import EPS, HUGE, Expected, Reference, Subject, chosen, run_config, size
from .random_nets.generate import generate

FILE = Path(__file__).parent / "expected.npz"
SEED, COUNT = 20, 150


def project(key: str, value: np.ndarray) -> np.ndarray:
    """Two numbers that stand for a value: they err no more than it does, or hardly."""
    random = np.random.default_rng(zlib.crc32(key.encode()))
    weights = random.standard_normal((2, value.size)) / np.sqrt(max(1, value.size))
    return weights @ np.asarray(value, np.float64).ravel()


def _code(key: str, shape: tuple[int, ...]) -> int:
    return zlib.crc32(f"{key} {shape}".encode())


class Stored:
    """What is expected of one of the stored nets."""

    rows: dict[int, np.ndarray] | None = None

    def __init__(self, number: int) -> None:
        if Stored.rows is None:
            with np.load(FILE) as file:
                numbers, codes, values = file["numbers"], file["codes"], file["values"]
            Stored.rows = dict(
                zip((numbers.astype(np.int64) << 32 | codes).tolist(), values, strict=True)
            )
        self.number = number

    def expected(self, key: str, shape: tuple[int, ...]) -> Expected | None:
        """The projections of a key's value; None if there is none of this shape."""
        assert Stored.rows is not None
        row = Stored.rows.get(self.number << 32 | _code(key, shape))
        return None if row is None else Expected(row[:2].astype(np.float64), float(row[2]))


def store() -> None:
    """Compute and write them all."""
    backend, eps = Cpu(), EPS["fp32"]
    numbers, codes, rows = [], [], []
    for number in range(COUNT):
        subject = Subject(generate(SEED, number))
        source, keys = Reference(subject, eps), {}
        for config in chosen(number):
            keys.update((key, value.shape) for key, value in run_config(config, subject, backend))
        for key, shape in keys.items():
            expected = source.expected(key)
            assert expected is not None, (number, key)
            assert expected.exact.shape == shape, (number, key)
        for group in list(source.known):
            source.widen(group, range(10, 18))
            exact = {key: each.exact for key, each in source.known[group].items()}
            wide = Reference(subject, eps)
            wide.known[group] = {key: Expected(each, 0.0) for key, each in exact.items()}
            wide.widen(group, range(20, 28), 30 * eps)
            for key in [key for key in keys if key in exact]:
                spread, far = source.known[group][key].spread, wide.known[group][key].spread
                if far > 300 * spread + 1e-6 * size(exact[key]) or not size(exact[key]) < HUGE:
                    spread = np.inf  # a step nearby: on another machine it may go the other way
                numbers.append(number)
                codes.append(_code(key, keys[key]))
                spread = 3 * max(spread, eps * size(exact[key]))  # of a projection
                rows.append([*project(key, exact[key]), spread])
    arrays = {
        "numbers": np.array(numbers, np.uint16),
        "codes": np.array(codes, np.uint32),
        "values": np.array(rows, np.float32),
    }
    np.savez_compressed(FILE, **arrays)
    print(f"{FILE}: {len(rows)} values of {COUNT} nets, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    sys.exit(store())
