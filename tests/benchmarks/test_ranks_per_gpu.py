"""The nets that `make bench-ranks` trains, and its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bench_ranks_per_gpu import BATCHES, rows, write_solver
from osucaffe.predict.sketch import Sketch
from osucaffe.proto import read_net, read_solver


@pytest.mark.parametrize(("model", "parameters"), [("lenet", 431_080), ("resnet18", 11_173_962)])
def test_nets_have_batches_of_their_own(tmp_path: Path, model: str, parameters: int) -> None:
    net = Sketch(read_net(read_solver(write_solver(model, tmp_path)).net))
    assert net.layers[0].type == "DummyData"
    learned = [each for each in net.parameters if each.lr_mult]
    assert sum(each.blob.data.size for each in learned) == parameters
    assert BATCHES[model] == 64


def test_the_table() -> None:
    rates = {"1": 1000, "2": 1500, "4": "does not run (why)"}
    case = {"net": "lenet", "batch": 64, "images_per_second": rates, "chosen": 2}
    assert list(rows([case])) == [["lenet", 64, "1,000", "1,500", "fails", "", "", 2, "1.50"]]
