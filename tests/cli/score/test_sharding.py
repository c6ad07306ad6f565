"""Ranks that share the batches of `test`, `classify` and `extract_features` find what one finds."""

from __future__ import annotations

import re

import pytest

from osucaffe.cli.score import sharding
from osucaffe.comm.job.job import Job

from .test_classify import classify, digits  # noqa: F401 (fixtures)
from .test_extract_features import prepare, records

ONE = ("--threads", "1")


class Ranks(Job):
    """A rank beside others, whose values are given."""

    def __init__(self, size: int, others: list[object]) -> None:
        self.size, self._others = size, others

    def collect(self, value: object) -> list[object]:
        return [value, *self._others]


def test_batches_come_in_their_order() -> None:
    made: list[int] = []

    def make(batch: int) -> str:
        made.append(batch)
        return f"own {batch}"

    found = list(sharding.in_turn(Ranks(3, ["a", "b"]), 7, make))
    assert found == ["own 0", "a", "b", "own 3", "a", "b", "own 6"]
    assert made == [0, 3, 6]
    assert list(sharding.in_turn(Job(), 2, make)) == ["own 0", "own 1"]


def lines(text: str) -> list[str]:
    """What a log says, but for times."""
    return [re.sub(r"^.*?\] ", "", line) for line in text.splitlines()]


@pytest.mark.ranks
def test_three_ranks_score_as_one(cli) -> None:
    prepare(cli)
    command = ("test", "--model=net.prototxt", "--weights=tiny.caffemodel", "--iterations=5", *ONE)
    alone, shared = cli(*command), cli(*command, "--ranks=3")
    assert alone.code == shared.code == 0, shared.err
    found, expected = ([t for t in lines(done.err) if " = " in t] for done in (shared, alone))
    assert found == expected
    assert len(found) == 12


@pytest.mark.ranks
def test_two_ranks_classify_as_one(cli, classify, digits) -> None:  # noqa: F811
    names, _ = digits(33)
    alone, shared = classify(*names, *ONE), classify(*names, *ONE, "--ranks", "2")
    assert alone.code == shared.code == 0, shared.err
    assert shared.out == alone.out
    assert len(alone.out.splitlines()) == 33 * 6


@pytest.mark.ranks
def test_two_ranks_extract_what_one_does(cli) -> None:
    prepare(cli)
    command = ("extract_features", "tiny.caffemodel", "net.prototxt", "ip,data")
    for databases, ranks in ("a,b", "1"), ("c,d", "2"):
        done = cli.ok(*command, databases, "3", *ONE, "--ranks", ranks)
        first, second = databases.split(",")
        assert done.out == f"wrote {first}: 24 x ip\nwrote {second}: 24 x data\n"
    for one, other in ("a", "c"), ("b", "d"):
        assert records(cli.folder / one) == records(cli.folder / other)
