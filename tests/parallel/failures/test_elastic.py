"""A run goes on, on fewer ranks, with the global batch that it began with (--elastic)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from osucaffe.cli.launch import restarts
from osucaffe.cli.train.options import Train
from osucaffe.errors import UserError
from osucaffe.parallel.batch import SingleRank, divide_batches, readers
from osucaffe.proto import caffe_pb2, read_weights
from tests.comm.ranks import needs_mpi
from tests.study.designs.test_designs import options

from .restarting import prepare
from .test_restarts import train

NET = """layer { name: "data" type: "Data" top: "x" data_param { source: "s" batch_size: 64 } }"""


def parse(text: str) -> Train:
    return options("--solver", "s.prototxt", *text.split())


@pytest.mark.parametrize(
    ("before", "sizes", "after"),
    [(4, [256], 2), (4, [252], 3), (2, [64], 1), (1, [64], 1), (8, [64, 60], 4), (5, [], 4)],
)
def test_as_many_ranks_remain_as_divide_the_batches(
    before: int, sizes: list[int], after: int
) -> None:
    assert restarts.remaining(before, sizes) == after


@pytest.mark.parametrize(
    ("options", "of"), [("", 4), ("--scal strong", 1), ("--gpu 0,1,4,5", 4), ("--gpu all", 4)]
)
def test_each_attempt_has_the_ranks_that_remain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, of: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.prototxt").write_text(f"net_param {{ {NET} }}")
    args = parse(options)
    made = restarts.attempts(
        args, 4, ["0", "1", "4", "5"], lambda count, *more: [str(count), *more]
    )
    found = [next(made) for _ in range(4)]
    assert [each.command[0] for each in found] == ["4", "2", "1", "1"]
    assert [each.info.get("ranks") for each in found] == [None, 2, 1, 1]
    assert {each.info.get("batches_of") for each in found[1:]} == {of}
    gpus = ["--gpu", "0,1"] if "0,1" in options else []
    assert found[1].command == ["2", "--ranks", "2", *gpus]


def test_the_one_that_remains_has_the_batches_of_all() -> None:
    from google.protobuf import text_format

    net = text_format.Parse(NET, caffe_pb2.NetParameter())
    sizes = [message.batch_size for _, message in readers(SingleRank(3).divide(net))]
    assert sizes == [192]
    assert [message.batch_size for _, message in readers(divide_batches(net, 2, of=3))] == [96]
    with pytest.raises(UserError, match="batch_size: 192 cannot be divided among 5 ranks"):
        divide_batches(net, 5, of=3)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--elastic", "give --max_restarts N, too"),
        ("--elastic --max_restarts 1 --servers 1", "cannot be combined with --servers"),
        ("--elastic --max_restarts 1 --ranks_per_gpu 2", "cannot be combined with --ranks_per_gpu"),
    ],
)
def test_what_does_not_go_together(options: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        restarts.check_elastic(parse(options))


@pytest.mark.long
@needs_mpi
def test_ranks_die_and_the_others_go_on(tmp_path: Path) -> None:
    """Three ranks, of which two die: the weights are those of three, but for rounding."""
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    for folder in (alone, killed):
        prepare(folder, 12)
    (killed / "die-2-6").write_text("run_iter_4.solverstate")
    (killed / "die-1-7").write_text("run_iter_8.solverstate")
    code, told = train(killed, "--ranks=3", "--max_restarts=2", "--elastic")
    assert code == 0, told
    assert "Global batch: 6 records per update (2 records on each of 3 ranks)" in told
    assert "from run_iter_4.solverstate, with ranks that remain (--elastic): 2" in told
    assert "Global batch: 6 records per update (3 records on each of 2 ranks)" in told
    assert "from run_iter_8.solverstate, with ranks that remain (--elastic): 1" in told
    assert train(alone, "--ranks=3")[0] == 0
    one, other = (read_weights(folder / "run_iter_12.caffemodel") for folder in (alone, killed))
    compared = 0
    for layer, same in zip(one.layer, other.layer, strict=True):
        for blob, its in zip(layer.blobs, same.blobs, strict=True):
            np.testing.assert_allclose(its.data, blob.data, rtol=1e-5, atol=1e-6)
            compared += len(blob.data)
    assert compared == 39
