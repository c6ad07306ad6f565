"""docs/communication.md names what there is."""

from __future__ import annotations

import re

import pytest

from osucaffe.cli import parse
from osucaffe.comm.algorithms import ALGORITHMS
from osucaffe.comm.config import KINDS
from osucaffe.parallel.config import ParallelConfig

from .ranks import ROOT

PAGE = (ROOT / "docs" / "communication.md").read_text()


def section(title: str) -> str:
    """The first columns of the table under a heading."""
    text = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return "\n".join(re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE))


def test_every_algorithm_is_named() -> None:
    known = {name for names in ALGORITHMS.values() for name in names} | {"native"}
    assert set(re.findall(r"`(\w+)`", section("Algorithms"))) == known


def test_every_communicator_is_named() -> None:
    assert set(re.findall(r"`([\w+]+)`", section("Communicators"))) == set(KINDS) - {"auto"}


@pytest.mark.parametrize("flag", ["aggregation", "propagation", "gradient_type"])
def test_flags_have_values_that_there_are(flag: str) -> None:
    named = re.findall(rf"--{flag} ([\w+]+)", PAGE)
    assert named
    for value in named:
        assert parse(["train", "--solver", "s", f"--{flag}", value])


def test_communicators_in_the_text_are_some_that_there_are() -> None:
    assert set(re.findall(r"--comm ([\w+]+)", PAGE)) <= set(KINDS)


def test_the_size_of_buckets_is_told_as_it_is() -> None:
    [told] = re.findall(r"(\d+) MB by default", PAGE)
    assert ParallelConfig().bucket == int(told) << 20
