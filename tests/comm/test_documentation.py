"""docs/communication.md names what there is."""

from __future__ import annotations

import re

import pytest

from osucaffe.comm.algorithms import ALGORITHMS
from osucaffe.comm.create import KINDS
from osucaffe.parallel.team import AGGREGATIONS, PROPAGATIONS

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


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("aggregation", AGGREGATIONS),
        ("propagation", PROPAGATIONS),
        ("comm", KINDS),
        ("gradient_type", ("bfloat16", "float16")),
    ],
)
def test_flags_have_values_that_there_are(flag: str, values: tuple[str, ...]) -> None:
    named = re.findall(rf"--{flag} ([\w+]+)", PAGE)
    assert named
    assert set(named) <= set(values)
