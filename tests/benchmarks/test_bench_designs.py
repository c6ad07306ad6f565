"""benchmarks.communication.bench_designs: what its table says of what was measured."""

from __future__ import annotations

from benchmarks.communication.bench_designs import ALONE, DESIGNS, FLOOR, PEER, render
from osucaffe.cli.launch.ranks import check_communication
from tests.study.designs.test_designs import options


def test_the_table_multiplies_iterations_and_their_time() -> None:
    record = {
        "date": "today",
        "machine": {"cpu": "some", "cores": 2, "load": 0.1},
        "given": {"every": 64, "accuracy": 0.985},
        "iterations": {PEER: 100, "local": 120, "lost": None},
        "ms": {"1gbit": {PEER: 50, "local": 10, "lost": 1, ALONE: 8}},
        "predicted": [[PEER, 2.0, 3.0, 4.0]],
    }
    text = render(record, "1gbit")
    assert f"| {PEER} | 100 | 5.0 | 1.0 |" in text
    assert "| local | 120 | 1.2 | 4.2 |" in text
    assert "| lost | not reached |  |  |" in text
    assert f"| {ALONE} |  | 0.8 | 6.2 |" in text
    assert f"| {PEER} | 2.00 | 3.00 | 4.00 |" in text


def test_designs_are_options_of_train() -> None:
    for design in (*DESIGNS, FLOOR):
        check_communication(options(*design.options.split()))
        assert f"--local_steps {design.multiple}" in design.options or design.multiple in (1, 64)
