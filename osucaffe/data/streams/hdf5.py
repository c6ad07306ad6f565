"""The stream of rows of HDF5 files that a list names."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from ...backends.tensor import Shape
from ...errors import UserError, listed
from ...files import read_file
from ...labels import Labels
from ...parsing import lines_of
from ...proto.hdf5 import Dataset, reading_hdf5
from .order import Arrangement, permutation, records_at

_WHAT = "HDF5 file of data"


class Hdf5Source:
    """The rows of the data sets `names`, file after file, over and over.

    path: a file that lists the HDF5 files, one a line. Every file has each data set, of as many
    rows as the others; of all files the data sets have one shape but for the rows. shuffle: other
    orders of the files, and of the rows in each, in every epoch. block: else, as for
    order.records_at, of the rows of all files. `shapes`: those of one row.
    A file's rows are read at once and stay in memory until the next file's are needed; with blocks,
    for good.
    labels: of each data set, the labels that it may hold (set them before the first batch).
    """

    def __init__(
        self,
        path: str,
        names: Sequence[str],
        *,
        shuffle: bool = False,
        block: int = 0,
        seed: int = 0,
    ) -> None:
        self._path, self._names = path, list(names)
        self.labels = [Labels() for _ in names]
        self._shuffle, self._block, self._seed = shuffle, block, seed
        self._files = self._read_list()
        described = [self._describe(file) for file in self._files]
        self.shapes = described[0][1]
        for file, (_, shapes) in zip(self._files, described, strict=True):
            for name, shape, first in zip(names, shapes, self.shapes, strict=True):
                if shape != first:
                    raise UserError(
                        f'data set "{name}" of {file} has rows of {shape}, but those of '
                        f"{self._files[0]} are {first}: all files need one shape"
                    )
        self._counts = np.array([rows for rows, _ in described])
        self._ends = np.cumsum(self._counts)
        self._kept: np.ndarray | None = None
        if not len(self):
            raise UserError(f"the HDF5 files that {path} lists have no rows")
        self._lock = threading.Lock()
        self._loaded: dict[int, list[np.ndarray]] = {}

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._kept is None else len(self._kept)

    @property
    def arrangement(self) -> Arrangement | None:
        """None if files are shuffled: no other stream has that order."""
        return None if self._shuffle else Arrangement(len(self), self._block, 0)

    def keep(self, records: np.ndarray) -> None:
        """Bring only these of the rows from now on, of all files' in the order of the list."""
        self._kept = records

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Which rows, of all files' in the order of the list, come at these positions of the
        stream: int32 (*of positions, 1)."""
        files, rows = self._at(positions)
        return ((self._ends - self._counts)[files] + rows).astype(np.int32)[..., None]

    def fill_whole(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """The same as `fill`: rows enter a batch unchanged."""
        self.fill(position, arrays)

    def fill(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """Write the rows of the stream from `position` on into a batch, an array a data set."""
        files, rows = self._at(np.arange(position, position + len(arrays[0])))
        for part in np.split(np.arange(len(files)), np.flatnonzero(np.diff(files)) + 1):
            for array, values in zip(arrays, self._rows(int(files[part[0]])), strict=True):
                array[part[0] : part[-1] + 1] = values[rows[part]]

    def _at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The files, and the rows in them, that come at these positions of the stream."""
        if not self._shuffle:
            _, indices = records_at(positions, len(self), block=self._block, seed=self._seed)
            kept = indices if self._kept is None else self._kept[indices]
            files = np.searchsorted(self._ends, kept, side="right")
            return files, kept - (self._ends - self._counts)[files]
        epochs, indices = np.divmod(positions, len(self))
        files, rows = np.empty_like(indices), np.empty_like(indices)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            order = permutation(self._seed, epoch, len(self._files))
            counts = self._counts[order]
            index = np.searchsorted(np.cumsum(counts), indices[chosen], side="right")
            files[chosen] = order[index]
            rows[chosen] = indices[chosen] - (np.cumsum(counts) - counts)[index]
            for file in np.unique(files[chosen]).tolist():
                there, number = chosen & (files == file), epoch * len(self._files) + file
                rows[there] = permutation(self._seed, number, int(self._counts[file]))[rows[there]]
        return files, rows

    def _rows(self, file: int) -> list[np.ndarray]:
        """All rows of a file, as float32."""
        with self._lock:
            if file not in self._loaded:
                with reading_hdf5(self._files[file], _WHAT) as opened:
                    values = [opened.array(name, np.float32) for name in self._names]
                for name, labels, array in zip(self._names, self.labels, values, strict=True):
                    labels.check_all(array, f'{self._files[file]}: data set "{name}"')
                if not self._block:
                    self._loaded.clear()
                self._loaded[file] = values
            return self._loaded[file]

    def _read_list(self) -> list[str]:
        try:
            lines = lines_of(read_file(self._path))
        except OSError as error:
            reason = "it must list HDF5 files, one per line, and is not one itself"
            raise UserError(f"cannot read {self._path} ({reason}): {error}") from error
        files = [line.strip() for line in lines if line.strip()]
        if not files:
            raise UserError(f"{self._path} lists no HDF5 files: give one per line")
        return files

    def _describe(self, file: str) -> tuple[int, list[Shape]]:
        """The number of rows of a file, and the shapes of a row of each data set."""
        try:
            with reading_hdf5(file, _WHAT) as opened:
                shapes: list[Shape] = []
                for name in self._names:
                    dataset = opened.get(name)
                    if not isinstance(dataset, Dataset):
                        there = listed(opened) or "nothing"
                        raise UserError(
                            f'{file} has no data set "{name}", which a top names; it has {there}'
                        )
                    shapes.append(dataset.shape)
                    if not dataset.shape or dataset.dtype.kind not in "fiu":
                        raise UserError(f'data set "{name}" of {file} is not an array of numbers')
        except UserError as error:
            raise UserError(f"{error} (it is listed in {self._path})") from None
        if len({shape[0] for shape in shapes}) != 1:
            rows = listed(f"{n} {s[0]}" for n, s in zip(self._names, shapes, strict=True))
            raise UserError(f"the data sets of {file} differ in their number of rows: {rows}")
        return shapes[0][0], [shape[1:] for shape in shapes]
