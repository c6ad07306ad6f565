"""`osucaffe study`: what is predicted and what this machine measured, on a page and in a table."""

from __future__ import annotations

import csv
from types import SimpleNamespace
from typing import Any

import pytest

from osucaffe.errors import UserError
from osucaffe.parallel.config import ParallelConfig
from osucaffe.study.iteration import DESIGNS, Prediction
from osucaffe.study.local_runs import LocalRuns, flags
from tests.apps.photographs.test_report import check_alone
from tests.cli.conftest import Cli
from tests.comm.ranks import needs_mpi

CLUSTER = """
ranks_per_host = 2
[device]
tflops = 0.01
memory_gb_s = 5
[links.node]
latency_us = 20
gb_s = 2
[links.network]
latency_us = 50
gb_s = 0.1
[sources]
"links.network" = "<assumed>"
"""


def ask(cli: Cli, *more: str) -> list[dict[str, str]]:
    """The rows of the CSV of a study, whose page stands alone."""
    cli.write("here.toml", CLUSTER)
    cli.ok("study", "--solver=solver.prototxt", "--cluster=here.toml", "--out=s.html", *more)
    check_alone((cli.folder / "s.html").read_text())
    with (cli.folder / "s.csv").open() as file:
        return list(csv.DictReader(file))


def test_what_is_predicted_has_a_page(cli: Cli) -> None:
    cli.write_net()
    cli.write_solver()
    rows = ask(cli, "--ranks=1,2,8", "--servers=1", "--local_ranks=0")
    assert {row["source"] for row in rows} == {"predicted"}
    assert {row["design"] for row in rows if row["ranks"] == "8"} == set(DESIGNS)
    for row in rows:
        assert float(row["exposed"]) <= float(row["ms"])
        assert (float(row["exposed"]) > 0) == (row["design"] != "one rank")
    text = (cli.folder / "s.html").read_text()
    best = min((row for row in rows if row["ranks"] == "8"), key=lambda row: float(row["ms"]))
    assert f"<td>8</td><td>predicted</td><td>{best['design']}</td>" in text
    assert "Measured" not in text
    assert "&lt;assumed&gt;" in text
    assert "osucaffe train --servers 1 --aggregation blocking" in text


@pytest.mark.long
@needs_mpi
def test_what_fits_is_measured(cli: Cli) -> None:
    """Two processes: two ranks, or a worker and a server; a design that cannot be trained is named,
    and the others are measured. Nothing else is written."""
    cli.write_net()
    cli.write_solver("clip_gradients: 5\nsnapshot: 1")
    before = {path.name for path in cli.folder.iterdir()}
    some = "--designs=all-reduce,sharded,Horovod,servers", "--ranks=1,2,4", "--servers=1"
    rows = ask(cli, *some, "--local_ranks=2", "--seconds=0.05", "--threads=1")
    measured = [row for row in rows if row["source"] == "measured"]
    assert [(row["ranks"], row["design"]) for row in measured] == [
        ("1", "one rank"), ("1", "servers"), ("2", "all-reduce"),
    ]  # fmt: skip
    for row in measured:
        assert 0 < float(row["low"]) <= float(row["ms"]) <= float(row["high"])
        batch, ranks = 8, int(row["ranks"])
        assert float(row["images"]) == pytest.approx(1e3 * batch * ranks / float(row["ms"]))
        assert float(row["efficiency"]) > 0
    text = (cli.folder / "s.html").read_text()
    assert "sharded on 2 ranks: " in text
    assert "leave it out" in text  # what train says of clipping with sharded weights
    assert {path.name for path in cli.folder.iterdir()} - before == {"here.toml", "s.html", "s.csv"}


def test_wrong_requests_are_refused(cli: Cli) -> None:
    cli.write_net()
    cli.write_solver()
    cli.write("here.toml", CLUSTER)
    ask = "study", "--solver=solver.prototxt", "--cluster=here.toml"
    assert "give a page to write" in cli.fails(*ask, "--out=s.txt").err
    result = cli.fails(*ask, "--bucket_mb=auto", "--local_ranks=1")
    assert "give a number, or --local_ranks 0" in result.err


def test_designs_are_options_of_train() -> None:
    def of(design: str, servers: str = "K") -> str:
        return flags(design, DESIGNS[design], servers)

    assert of("SC-OBR") == "--aggregation layerwise --propagation overlapped"
    assert of("servers behind", "2") == "--servers 2 --aggregation blocking"
    assert of("Horovod") == ""
    assert flags("sign", ParallelConfig(compression="sign")) == "--compression sign"


def test_the_fastest_turn_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of designs in turn, beside the fastest turn of one rank; without that nothing is measured."""
    args = SimpleNamespace(threads=1, servers=None)
    case: Any = SimpleNamespace(
        args=args, designs=["all-reduce", "sharded"], configs=DESIGNS, ranks=[1, 2, 4]
    )
    case.sketch = len
    runs, took = LocalRuns(case, 2, 1.0), {"all-reduce": [9.0, 7.0, 8.0], "sharded": [6.0]}

    def alone(size: int) -> Prediction:
        return Prediction("one rank", 1, 4.0 / size, 1, 1, 0, 0, 0)

    def train(design: str, size: int, alone: float) -> Prediction:
        if not took[design]:
            raise UserError("no more")
        return Prediction(design, size, took[design].pop(0), 1, 1, alone, 0, 0)

    monkeypatch.setattr(runs, "_train_alone", alone)
    monkeypatch.setattr(runs, "_train", train)
    found = [(one.design, one.ranks, one.ms, one.computing) for one in runs.measure()]
    assert found == [("one rank", 1, 4, 4), ("all-reduce", 2, 7, 2), ("sharded", 2, 6, 2)]
    assert runs.failed == ["sharded on 2 ranks: no more"]

    def fail(size: int) -> Prediction:
        raise UserError("no data")

    monkeypatch.setattr(runs, "_train_alone", fail)
    assert list(runs.measure()) == []
    assert runs.failed[1:] == [f"one rank on {size} ranks: no data" for size in (1, 2)]
