"""Tests of the order of records: each once in an epoch, whatever the ranks; shuffled blocks."""

import numpy as np
import pytest

from osucaffe.data.streams.order import consecutive, records_at


def stream(position, wanted, count, **options):
    epochs, records = records_at(position + np.arange(wanted), count, **options)
    return list(zip(epochs.tolist(), records.tolist(), strict=True))


@pytest.mark.parametrize("block", [0, 1, 4, 7, 23, 50])
def test_each_epoch_has_each_record_once_and_any_position_goes_on(block):
    whole = stream(0, 23 * 4, 23, block=block, seed=5)
    for epoch in range(4):
        part = whole[23 * epoch : 23 * (epoch + 1)]
        assert sorted(part) == [(epoch, record) for record in range(23)]
    for position in range(60):
        assert stream(position, 17, 23, block=block, seed=5) == whole[position : position + 17]


def test_blocks_stay_whole_and_their_order_is_the_seeds_and_the_epochs():
    orders = set()
    for seed in range(3):
        for epoch in range(3):
            _, records = records_at(epoch * 23 + np.arange(23), 23, block=4, seed=seed)
            starts = records[records % 4 == 0].tolist()
            blocks = [range(start, min(start + 4, 23)) for start in starts]
            assert records.tolist() == [record for block in blocks for record in block]
            orders.add(tuple(starts))
    assert len(orders) == 9


def test_runs_of_numbers_that_follow_one_another():
    numbers, places = np.array([3, 4, 5, 9, 10, 0]), np.array([0, 2, 4, 6, 7, 9])
    runs = [(each.start, each.stop) for each in consecutive(numbers)]
    assert runs == [(0, 3), (3, 5), (5, 6)]
    runs = [(each.start, each.stop) for each in consecutive(numbers, places, step=2)]
    assert runs == [(0, 3), (3, 4), (4, 5), (5, 6)]
    assert not list(consecutive(numbers[:0]))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 64])
def test_ranks_together_cover_each_epoch_exactly(ranks):
    count, batch = 1000, 3
    steps = -(-3 * count // (batch * ranks))
    taken = []
    for step in range(steps):
        for rank in range(ranks):
            taken += stream((step * ranks + rank) * batch, batch, count, block=16, seed=1)
    epochs, records = np.array(taken[: 3 * count]).T
    for epoch in range(3):
        assert (np.sort(records[epochs == epoch]) == np.arange(count)).all()
