"""The split of photographs: stable, in every class, copies together."""

from __future__ import annotations

from collections import Counter

import pytest

from osucaffe.apps.photographs.split import balance, split
from osucaffe.data.streams.image_list import Entry
from osucaffe.errors import UserError


def test_the_split_stays_when_photos_come() -> None:
    entries = [Entry(f"cat/{at}.jpg", 0) for at in range(2000)]
    train, val = split(entries[:1000], 0.2)
    assert 160 < len(val) < 240
    more_train, more_val = split(entries[::-1], 0.2)
    assert set(train) < set(more_train)
    assert val == [each for each in more_val if each in set(val)]
    assert set(more_val) < set(split(entries, 0.3)[1])
    with pytest.raises(UserError, match=r"none of 1 photographs is for (training|validation)"):
        split(entries[:1], 0.5)


def test_every_class_is_in_both_parts() -> None:
    entries = [Entry(f"{label}/{at}.jpg", label) for label in range(40) for at in range(2)]
    for share in 0.01, 0.5, 0.99:
        train, val = split(entries, share)
        assert sorted(entry.label for entry in train) == [*range(40)]
        assert sorted(entry.label for entry in val) == [*range(40)]
    single = [*entries, Entry("alone.jpg", 40)]
    assert single[-1] in split(single, 0.01)[0]


def test_copies_are_in_one_part() -> None:
    entries = [Entry(f"{at}.jpg", at % 2) for at in range(400)]
    train, val = split(entries, 0.5, [at // 4 * 4 + at % 2 for at in range(400)])
    for at in range(0, 400, 4):
        for first in at, at + 1:
            assert (entries[first] in train) == (entries[first + 2] in train)
    assert 100 < len(val) < 300


def test_photographs_of_small_classes_are_repeated() -> None:
    entries = [Entry(f"a/{n}.jpg", 0) for n in range(60)]
    entries += [Entry(f"b/{n}.jpg", 1) for n in range(25)] + [Entry("c/1.jpg", 2)]
    mixed = balance(entries)
    assert Counter(entry.label for entry in mixed) == {0: 60, 1: 50, 2: 10}
    assert Counter(Counter(mixed).values()) == {1: 60, 2: 25, 10: 1}
    assert mixed == balance(entries[::-1])
    halves = Counter(entry.label for entry in mixed[:60])
    assert all(halves[label] > 0 for label in range(3))
