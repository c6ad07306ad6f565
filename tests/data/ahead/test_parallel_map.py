"""Bad records are each tried and counted once, and told of in few lines, however many there are."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from osucaffe.data.ahead.parallel_map import BadRecords
from osucaffe.errors import UserError

COUNT = 1000


@pytest.mark.parametrize("good", [[0], [999], [3, 500]])
def test_where_most_are_bad_each_is_tried_once(
    good: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    tried: Counter[int] = Counter()

    def read(number: int) -> str:
        tried[number] += 1
        if number not in good:
            raise UserError(f"{number} is bad")
        return f"record {number}"

    bad = BadRecords(skip=True)
    for number in [*range(COUNT), *range(COUNT)]:
        after = [each for each in good if each >= number]
        place = (after or good)[0]
        assert bad.usable(number, COUNT, read, "none") == (f"record {place}", place)
    assert {tried[number] for number in range(COUNT) if number not in good} == {1}
    assert bad.count == COUNT - len(good)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 10 + 7
    assert lines[-1].startswith("Skipped: 640 records so far")


def test_where_all_are_bad_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def read(number: int) -> str:
        raise UserError(f"{number} is bad")

    caplog.set_level(logging.CRITICAL)
    with pytest.raises(UserError, match="none is good"):
        BadRecords(skip=True).usable(7, COUNT, read, "none is good")
    with pytest.raises(UserError, match="7 is bad"):
        BadRecords().usable(7, COUNT, read, "none is good")
