"""The base of streams of records: items repeated endlessly in a seeded order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from ...labels import Labels
from ..ahead.parallel_map import BadRecords
from ..pictures.transform import record_draws
from .order import Arrangement, first_record, records_at

Item = TypeVar("Item")


class RecordStream(ABC, Generic[Item]):
    """The items of a list or a database, repeated endlessly: a subclass reads and writes one.

    count: how many there are. none: the message if none of them can be used. The stream begins
    at an item below `rand_skip` that the seed picks. block: as for order.records_at. bad:
    handles unusable items; a skipped one is replaced by the next good one.
    labels: the valid ones (set them before the first batch).
    """

    def __init__(
        self,
        count: int,
        none: str,
        *,
        seed: int = 0,
        rand_skip: int = 0,
        block: int = 0,
        bad: BadRecords | None = None,
    ) -> None:
        self._count, self._none = count, none
        self._seed, self._block = seed, block
        self._start = first_record(seed, rand_skip)
        self._kept: np.ndarray | None = None
        self.bad = bad or BadRecords()
        self.labels = Labels()

    def __len__(self) -> int:
        """How many items an epoch has."""
        return self._count if self._kept is None else len(self._kept)

    @property
    def arrangement(self) -> Arrangement | None:
        return Arrangement(len(self), self._block, self._start)

    def keep(self, records: np.ndarray) -> None:
        """Bring only these of the items from now on; none of them can be skipped any more."""
        self._kept, self.bad = records, BadRecords()

    def file_name(self, record: int) -> str:
        """The name of the file that an item is from; else its number."""
        return str(record)

    @abstractmethod
    def read(self, record: int, draw: int) -> Item:
        """An item, augmented by 64 random bits. UserError that names it if it cannot be used."""

    def write(self, item: Item, draw: int, arrays: Sequence[np.ndarray]) -> None:
        """Write an item to its row in each of the arrays of a batch: called by `fill`."""
        raise NotImplementedError

    def check(self) -> None:
        """UserError if the source of the items has changed."""

    def fill(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """Write the items of the stream from `position` on into the arrays of a batch.

        The result does not depend on who calls it, or in how many parts. Raises UserError that
        names an item that cannot be used.
        """
        self.check()
        for at, (record, draw) in enumerate(self.drawn(position, len(arrays[0]))):
            self.write(self.usable(record, draw), draw, [array[at, ...] for array in arrays])

    def usable(self, record: int, draw: int) -> Item:
        """An item, or if it is bad and to be skipped the next good one."""
        return self.bad.usable(record, self._count, lambda at: self.read(at, draw), self._none)[0]

    def order(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The epochs and the items at these positions of the stream."""
        epochs, records = records_at(
            self._start + positions, len(self), block=self._block, seed=self._seed
        )
        return epochs, records if self._kept is None else self._kept[records]

    def drawn(self, position: int, count: int) -> list[tuple[int, int]]:
        """The items at the next positions of the stream, and the random bits of each."""
        epochs, records = self.order(np.arange(position, position + count))
        draws = record_draws(self._seed, epochs, records)
        return list(zip(records.tolist(), draws.tolist(), strict=True))
