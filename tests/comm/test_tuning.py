"""Which algorithm is picked: by name, by the shipped table, by a table of the user's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from osucaffe.comm.algorithms import OPERATIONS
from osucaffe.comm.job.job import Job
from osucaffe.comm.tuning import measure
from osucaffe.comm.tuning.measure import SIZES, _rows, choices, merge
from osucaffe.comm.tuning.table import GPU, LEVELS, Choice, Selection, read_table
from osucaffe.errors import UserError

SHIPPED = Path(__file__).resolve().parents[2] / "osucaffe" / "comm" / "tuning" / "table.json"


@pytest.mark.parametrize("level", LEVELS)
def test_the_shipped_table_knows_every_case(level: str) -> None:
    selection = Selection(file=SHIPPED)
    for operation in OPERATIONS:
        for ranks in (2, 3, 5, 16, 1000):
            for nbytes in (1, 4096, 1 << 20, 1 << 30):
                assert selection.choose(operation, nbytes, ranks, level).algorithm


def test_a_name_holds_for_the_operations_that_have_it() -> None:
    selection = Selection("ring", chunk=99, file=SHIPPED)
    assert selection.choose("all_reduce", 4, 2, "node") == Choice("ring", 99)
    assert selection.choose("broadcast", 4, 2, "node").algorithm != "ring"
    with pytest.raises(UserError, match="'rings' is not known"):
        Selection("rings")


def test_rows_are_made_and_read_again(tmp_path: Path) -> None:
    best = [(16, Choice("binomial")), (64, Choice("binomial")), (256, Choice("ring"))]
    rows = {"all_reduce": _rows(best)}
    path = tmp_path / "made" / "tuning.json"
    merge(path, "node", 4, rows)
    merge(path, "node", 8, {"all_reduce": _rows(best[2:])})
    selection = Selection(file=path)
    names = [selection.choose("all_reduce", n, 4, "node").algorithm for n in (1, 128, 129, 9999)]
    assert names == ["binomial", "binomial", "ring", "ring"]
    assert selection.choose("all_reduce", 1, 5, "node").algorithm == "ring"
    assert selection.choose("broadcast", 1, 4, "node").algorithm


def test_the_gpus_of_a_host_have_a_level_of_their_own(tmp_path: Path) -> None:
    shipped = Selection("ring", file=SHIPPED)
    sizes = (4, 1 << 20, 1 << 28)
    ways = [shipped.choose_on_gpus("all_reduce", nbytes, 2) for nbytes in sizes]
    assert ways == ["ipc", "ipc", "nccl"]
    for operation in OPERATIONS:
        assert shipped.choose_on_gpus(operation, 1 << 28, 16) == "nccl"
    best = [(1 << 10, Choice("ipc", 0)), (1 << 20, Choice("nccl", 0))]
    path = tmp_path / "tuning.json"
    merge(path, GPU, 4, {"all_reduce": _rows(best)})
    selection = Selection(file=path)
    ways = [selection.choose_on_gpus("all_reduce", n, 3) for n in (1 << 15, (1 << 15) + 1)]
    assert ways == ["ipc", "nccl"]
    assert selection.choose_on_gpus("broadcast", 4, 3) == "nccl"  # which the file lacks
    assert selection.choose("all_reduce", 4, 2, "node").algorithm


def test_gpus_are_measured_and_the_faster_way_is_kept() -> None:
    """With communicators that take some us and a time by their rate, which depends on what."""
    seconds = {"nccl": lambda n: 10e-6 + n / 2e11, "ipc": lambda n: 2e-6 + n / 1e11}
    slower = {"reduce_scatter": 4}

    def replayed(
        comm: str, array: int, stream: None, repeat: int, operation: str
    ) -> Callable[[], float]:
        factor = slower.get(operation, 1) if comm == "ipc" else 1
        return lambda: seconds[comm](4 * array * factor)

    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "replayed", replayed)
        comms: Any = {name: name for name in seconds}
        rows = measure.measure_gpus(Job(), comms, lambda count: count, None, SIZES, lines.append)
    [[most, first, _], [rest, second, _]] = rows["all_reduce"]
    assert (first, second, rest) == ("ipc", "nccl", None)
    assert 1 << 20 < most < 4 << 20
    assert rows["broadcast"] == rows["all_reduce"]
    assert 1 << 16 < rows["reduce_scatter"][0][0] < 1 << 20
    assert len(lines) == len(OPERATIONS) * len(SIZES)


@pytest.mark.parametrize(
    "text",
    [
        '{"levels": {"gpu": {"all_reduce": {"2": [[null, "ring", 1]]}}}}',
        "{",
        "[]",
        '{"levels": {"nodes": {"all_reduce": {"2": [[null, "ring", 1]]}}}}',
        '{"levels": {"node": {"sort": {"2": [[null, "ring", 1]]}}}}',
        '{"levels": {"node": {"all_reduce": {"2": [[9, "ring", 1]]}}}}',
        '{"levels": {"node": {"all_reduce": {"2": [[null, "rings", 1]]}}}}',
    ],
)
def test_damaged_tables_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(UserError, match="not a tuning table"):
        read_table(path)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.json: cannot read"):
        Selection(file=tmp_path / "none.json")


def test_what_is_tried() -> None:
    for operation in OPERATIONS:
        for nbytes in SIZES:
            tried = list(choices(operation, nbytes))
            assert len(set(tried)) == len(tried) > 1


def test_the_shipped_table_is_written_as_tune_writes() -> None:
    from osucaffe.comm.tuning.measure import render

    assert SHIPPED.read_text() == render(json.loads(SHIPPED.read_text()))
