"""The search finds what fails, makes it smaller, and says how to see it again."""

from __future__ import annotations

import numpy as np
import pytest

from .search import Case, Kind, check_cases, failure, fewest, main, minimize


def draw(random: np.random.Generator) -> Case:
    return {name: int(random.integers(1, 9)) for name in "abcdefg"}


def check(case: Case) -> None:
    """Fails with an odd b where e is there, and otherwise where a is 1."""
    assert not ("e" in case and case.get("b", 0) % 2), f"odd: {case}"
    if case.get("a") == 1:
        raise ValueError("one: a")


KIND = Kind("somewhere", draw, check, str)


def test_a_failure_keeps_only_the_settings_that_it_needs() -> None:
    case = {"a": 1, "b": 3, "c": 2, "d": 2, "e": 5, "f": 0}
    assert failure(KIND, case)[0] == "AssertionError: odd"
    assert minimize(KIND, case) == {"b": 3, "e": 5}


def test_a_smaller_case_fails_in_the_same_way() -> None:
    assert minimize(KIND, {"a": 1, "b": 2, "e": 5}) == {"a": 1}


def test_a_report_says_how_to_see_the_failure_again() -> None:
    number = next(n for n in range(99) if KIND.case(3, n)["b"] % 2)
    with pytest.raises(AssertionError, match=f"somewhere --seed 3 --first {number} --cases 1"):
        check_cases(KIND, 3, range(99))


def test_the_command_line_counts_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["search", "--seed", "3", "--cases", "20"])
    assert main(KIND) == 1
    odd = sum(bool(failure(KIND, KIND.case(3, n))[0]) for n in range(20))
    assert f"seed 3, 20 cases, {odd} failed" in capsys.readouterr().out


def test_items_that_stand_there_twice_are_left_out_one_by_one() -> None:
    assert fewest("abcab", lambda some: some.count("a") == 2 and "b" in some) == ["a", "b", "a"]
