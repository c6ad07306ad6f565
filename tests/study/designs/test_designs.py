"""Compressed gradients and local steps: their mathematics, their limits, and what resumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from osucaffe.cli import parse
from osucaffe.cli.launch.ranks import check_communication
from osucaffe.cli.train.options import Train
from osucaffe.errors import UserError
from osucaffe.parallel.choose import choose_hook
from osucaffe.parallel.config import ParallelConfig
from osucaffe.proto import SolverState, fill_blob, read_state, write_state
from tests.comm.ranks import all_say, needs_mpi
from tests.parallel.program import saved, train, write_run

SOLVER = """
net: "net.prototxt" type: "SGD" momentum: 0.9 base_lr: 0.05 lr_policy: "fixed" random_seed: 5
max_iter: 8 snapshot: 4 snapshot_prefix: "run" test_iter: 1 test_interval: 4
"""


@needs_mpi
def test_mathematics(tmp_path: Path) -> None:
    all_say("alike", 2, "tests.study.designs.designing", str(tmp_path))


@needs_mpi
def test_reproducible_sums_have_the_bits_of_one_rank(tmp_path: Path) -> None:
    """By other ranks, buckets, algorithms and hierarchies; plain sums have others."""
    write_run(tmp_path, "", batch=3)
    net = (tmp_path / "net.prototxt").read_text().replace("mirror: true crop_size: 7", "")
    net = net.replace("crop_size: 7", "")
    (tmp_path / "net.prototxt").write_text(net.replace("Dropout", "ReLU"))
    bits = {}
    for ranks, *options in (
        (1, "--reproducible"),
        (2, "--reproducible", "--bucket_mb", "0", "--algorithm", "ring"),
        (4, "--reproducible", "--group", "2"),
        (4, "--reproducible", "--aggregation", "blocking", "--algorithm", "recursive_doubling"),
        (1,),
    ):
        solver = SOLVER + f"iter_size: {4 // ranks} weight_decay: 0.01"
        (tmp_path / "solver.prototxt").write_text(solver)
        train(tmp_path, ranks, "--threads", "1", *options)
        bits[ranks, *options] = tuple(saved(tmp_path / "run_iter_8.caffemodel"))
    plain = bits.pop((1,))
    assert len({*bits.values()}) == 1
    assert plain not in bits.values()


@needs_mpi
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--compression", "topk:0.05"), marks=pytest.mark.long),
        pytest.param(("--compression", "powersgd:1"), marks=pytest.mark.long),
        ("--local_steps", "2", "--outer_lr", "0.7", "--outer_momentum", "0.9"),
        ("--local_steps", "2", "--compression", "8bit"),
    ],
    ids=" ".join,
)
def test_resumes_to_the_bit(tmp_path: Path, options: tuple[str, ...]) -> None:
    write_run(tmp_path, SOLVER)
    train(tmp_path, 2, *options)
    whole = saved(tmp_path / "run_iter_8.caffemodel")
    state = (tmp_path / "run_iter_8.solverstate").read_bytes()
    told = train(tmp_path, 2, "--snapshot", "run_iter_4.solverstate", *options)
    assert saved(tmp_path / "run_iter_8.caffemodel") == whole
    assert (tmp_path / "run_iter_8.solverstate").read_bytes() == state
    assert "exchange between ranks" not in told
    if "8bit" in options:  # and without it, or alone
        told = train(tmp_path, 2, "--snapshot", "run_iter_4.solverstate", *options[:2])
        assert "residual of the exchange between ranks is left out" in told
        assert saved(tmp_path / "run_iter_8.caffemodel") != whole


@needs_mpi
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--compression", "topk:0.05"), marks=pytest.mark.long),
        ("--local_steps", "2", "--outer_momentum", "0.5"),
    ],
)
def test_goes_on_with_another_number_of_ranks(tmp_path: Path, options: tuple[str, ...]) -> None:
    """What ranks keep goes with it, and matters."""
    write_run(tmp_path, SOLVER)
    train(tmp_path, 2, *options)
    found = []
    for _ in range(2):
        told = train(tmp_path, 3, "--snapshot", "run_iter_4.solverstate", *options)
        assert "exchange between ranks" not in told
        found.append(saved(tmp_path / "run_iter_8.caffemodel"))
    assert found[0] == found[1]
    kept = read_state(tmp_path / "run_iter_4.solverstate")
    assert any(value for buffer in kept.exchange for blob in buffer.blob for value in blob.data)
    kept.ClearField("exchange")
    write_state(tmp_path / "run_iter_4.solverstate", kept, checksum=True)
    told = train(tmp_path, 3, "--snapshot", "run_iter_4.solverstate", *options)
    assert "not in the snapshot: it begins with zeros" in told
    assert saved(tmp_path / "run_iter_8.caffemodel") != found[0]


@needs_mpi
def test_one_rank_says_that_it_has_no_use_for_it(tmp_path: Path) -> None:
    write_run(tmp_path, SOLVER)
    train(tmp_path, 2, "--compression", "topk:0.05")
    told = train(tmp_path, 1, "--snapshot", "run_iter_4.solverstate")
    assert "residual of the exchange between ranks is left out" in told


def test_hdf5_states_hold_it_too(tmp_path: Path) -> None:
    state = SolverState(iter=4, learned_net="net")
    for name in ("residual", "outer_momentum"):
        buffer = state.exchange.add(name=name)
        for number in range(2):
            fill_blob(buffer.blob.add(), np.full((2, 3), number, np.float32))
    for path in (tmp_path / "s.solverstate", tmp_path / "s.solverstate.h5"):
        write_state(path, state, checksum=True)
        found = {buffer.name: list(buffer.blob) for buffer in read_state(path).exchange}
        assert found == {buffer.name: list(buffer.blob) for buffer in state.exchange}


def options(*given: str) -> Train:
    made: Train = parse(["train", "--solver", "s", *given])[1]
    return made


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--compression topk", "--compression topk: choose none, topk:SHARE or"),
        ("--compression topk:2", "--compression topk:2: choose"),
        ("--compression powersgd:0", "--compression powersgd:0: choose"),
        ("--compression sign --propagation sharded", "leave out --propagation sharded"),
        ("--compression sign --gradient_type float16", "remove --gradient_type float16"),
        ("--compression sign --servers 1", "--compression sign cannot be combined with --servers"),
        ("--local_steps 2 --propagation overlapped", "leave out --propagation overlapped"),
        (
            "--local_steps 2 --bucket_mb auto",
            "--local_steps 2 cannot be combined with --bucket_mb auto",
        ),
        ("--local_steps 2 --outer_momentum 1", "--outer_momentum at least 0 and below 1"),
        ("--reproducible --servers 1", "--reproducible cannot be combined with --servers"),
        ("--reproducible --propagation sharded", "leave out --propagation sharded"),
        ("--reproducible --gradient_type bfloat16", "remove --gradient_type bfloat16"),
        ("--reproducible --local_steps 2", "leave it out, or --local_steps 2"),
        ("--reproducible --compression sign", "leave it out, or --compression sign"),
        ("--outer_lr 0.7", "require --local_steps"),
    ],
)
def test_what_does_not_go_together(given: str, told: str) -> None:
    with pytest.raises(UserError, match=told.replace("[", r"\[")):
        check_communication(options(*given.split()))


def test_names() -> None:
    assert choose_hook(ParallelConfig()) is None
    for text in ("topk:0.01", "randomk:1", "powersgd:4", "8bit", "sign"):
        assert choose_hook(ParallelConfig(compression=text)) is not None
        check_communication(options("--compression", text))
