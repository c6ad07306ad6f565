"""The algorithm that an operation uses: the requested one, or the best by a tuning table.

A table is JSON: {level: {operation: {ranks: [[most bytes or null, algorithm, chunk bytes], ...]}}}.
The row for the nearest number of ranks that is not smaller (or else the largest) holds, and in it
the first entry whose bytes suffice. The table that comes with osucaffe is `table.json`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import UserError
from ...parsing import as_int, from_json
from ..algorithms import ALGORITHMS, Operation, algorithms_for

CHUNK = 256 * 1024
"""Bytes that a pipeline moves at a time by default."""

LEVELS = ("node", "network")
"""Ranks that share memory, and ranks that do not."""
GPU, GPU_WAYS = "gpu", ("nccl", "ipc")
"""A further level, the GPUs of a host: which communicator does an operation."""
NATIVE = (Operation.BROADCAST, Operation.REDUCE, Operation.ALL_REDUCE, Operation.ALL_GATHER)
"""The operations that MPI libraries have themselves, in place."""
INSTEAD = {
    Operation.BROADCAST: "scatter_allgather", Operation.REDUCE: "scatter_gather",
    Operation.ALL_REDUCE: "halving_doubling", Operation.ALL_GATHER: "ring",
}  # fmt: skip
"""The algorithms for arrays that these do not take."""

Table = Mapping[str, Mapping[str, Mapping[int, list[tuple[float, str, int]]]]]


class Choice(NamedTuple):
    """An algorithm, and the bytes of its chunks where it works in chunks."""

    algorithm: str
    chunk: int = CHUNK


class Selection:
    """Picks algorithms.

    name: "auto" for the table's, or an algorithm's name: it is used for the operations that have
    it, and the table for the others. file: the user's table (`osucaffe tune` writes it).
    UserError for unknown names and damaged tables.
    """

    def __init__(
        self, name: str = "auto", *, chunk: int | None = None, file: str | Path | None = None
    ) -> None:
        if name == "native":
            fixed = dict.fromkeys(NATIVE, name)
        else:
            fixed = {} if name == "auto" else algorithms_for(name)
        fixed[Operation.ALL_TO_ALL] = "direct"
        self._fixed = {operation: Choice(one, chunk or CHUNK) for operation, one in fixed.items()}
        self._chunk = chunk
        self._table = read_table(find_table() if file is None else Path(file))
        self._cache: dict[tuple[str, str, int, int], Choice] = {}

    def choose(self, operation: Operation, nbytes: int, ranks: int, level: str) -> Choice:
        """The algorithm for an operation on arrays of nbytes."""
        if operation in self._fixed:
            return self._fixed[operation]
        return self._look_up(level, operation, nbytes, ranks)

    def choose_on_gpus(self, operation: Operation, nbytes: int, ranks: int) -> str:
        """The communicator for an operation on arrays of nbytes: one of GPU_WAYS."""
        return self._look_up(GPU, operation, nbytes, ranks).algorithm

    def _look_up(self, level: str, operation: Operation, nbytes: int, ranks: int) -> Choice:
        """The table's entry, cached: a look-up takes longer than a small message."""
        key = level, operation, nbytes, ranks
        if (choice := self._cache.get(key)) is None:
            choice = _find(self._table[level][operation], nbytes, ranks)
            choice = self._cache[key] = choice._replace(chunk=self._chunk or choice.chunk)
        return choice


def _find(rows: Mapping[int, list[tuple[float, str, int]]], nbytes: int, ranks: int) -> Choice:
    row = rows[min((count for count in rows if count >= ranks), default=max(rows))]
    return next(Choice(name, chunk) for most, name, chunk in row if nbytes <= most)


def user_table() -> Path:
    """The file that `osucaffe tune` writes, and that a run prefers."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "osucaffe" / "tuning.json"


def find_table() -> Path:
    """The user's table if there is one, or the one that comes with osucaffe."""
    tuned = user_table()
    return tuned if tuned.is_file() else Path(__file__).with_name("table.json")


@lru_cache(maxsize=8)
def read_table(path: Path) -> Table:
    """Read and check a table; missing levels and operations come from the built-in one."""
    shipped = Path(__file__).with_name("table.json")
    try:
        table = _parse(from_json(path.read_text()))
    except OSError as error:
        raise UserError(f"{path}: cannot read the tuning table: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: not a tuning table ({error}): write it again with osucaffe tune, or remove it"
        ) from error
    if path == shipped:
        return table
    default = read_table(shipped)
    return {level: {**default[level], **table.get(level, {})} for level in default}


def _parse(content: Any) -> Table:
    table: dict[str, dict[str, dict[int, list[tuple[float, str, int]]]]] = {}
    for level, operations in content["levels"].items():
        if level not in (*LEVELS, GPU):
            raise ValueError(f"level {level}")
        for operation, rows in operations.items():
            known = {*ALGORITHMS[operation], *(["native"] if operation in NATIVE else [])}
            if level == GPU:
                known = set(GPU_WAYS)
            for ranks, row in rows.items():
                entries = [
                    (
                        float("inf") if most is None else float(most),
                        str(name),
                        as_int(chunk, 0, 1 << 62),
                    )
                    for most, name, chunk in row
                ]
                unknown = [name for _, name, _ in entries if name not in known]
                if unknown or not entries or entries[-1][0] != float("inf"):
                    raise ValueError(f"{level}, {operation}, {ranks} ranks: {unknown or row}")
                table.setdefault(level, {}).setdefault(operation, {})[int(ranks)] = entries
    return table
