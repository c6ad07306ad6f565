"""Designs of modules outside osucaffe (examples/extending): an algorithm, a compression, and an
aggregation train as one rank does, and are predicted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from osucaffe.cli import main
from osucaffe.cli.launch.ranks import check_communication
from osucaffe.errors import UserError
from tests.comm.ranks import all_say, needs_mpi
from tests.study.designs.test_designs import options

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples" / "extending"


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLES}:{ROOT}")
    monkeypatch.syspath_prepend(str(EXAMPLES))


@needs_mpi
def test_they_train_as_one_rank(tmp_path: Path) -> None:
    all_say("alike", 3, "tests.parallel.brought", str(tmp_path))


def test_they_are_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    """Who waits where gradients are sent hides none of them."""
    files = [ROOT / "models/caffenet/solver.prototxt", ROOT / "clusters/edr-k80.toml"]
    given = ["predict", "--solver", str(files[0]), "--cluster", str(files[1]), "--ranks", "4"]
    given += ["--designs", "all-reduce,all-reduce behind", "--set", "stragglers.sigma=0"]
    more = ["--aggregation", "paused:Paused", "--compression", "halves:Halves"]
    assert main([*given, *more, "--algorithm", "star:star", "--flat"]) == 0
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    rows = [[word.strip() for word in row if word] for row in rows]
    took = {row[1]: float(row[2]) for row in rows if row[0] == "4"}
    assert (
        took["all-reduce"]
        < took["paused:Paused"]
        == pytest.approx(took["all-reduce behind"], rel=0.05)
    )
    assert took["all-reduce"] < took["halves:Halves"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--compression nowhere:Kind", "nowhere:Kind cannot be imported: No module"),
        ("--compression halves:Halves:2", "--compression halves:Halves:2: choose none"),
        ("--compression halves:Thirds", "no attribute 'Thirds': install its package, or put its"),
        ("--algorithm star:moon", "star:moon cannot be imported"),
        (
            "--aggregation paused:Paused --servers 1",
            "--aggregation paused:Paused cannot be combined with --servers",
        ),
        ("--aggregation paused:Paused --local_steps 2", "cannot be combined with --local_steps 2"),
    ],
)
def test_what_cannot_be(given: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        check_communication(options(*given.split()))
