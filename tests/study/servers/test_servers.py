"""Parameter servers: what each consistency promises, what they hold, and that all end together."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks.hosts import hosts
from osucaffe.errors import UserError
from osucaffe.parallel.buckets import Bucket
from osucaffe.proto import read_state
from osucaffe.study.servers.shards import MAX_UNDIVIDED, Consistency, divide
from tests.comm.ranks import all_say, mpiexec, needs_mpi
from tests.parallel.failures import kills
from tests.parallel.program import saved, train, write_run

SOLVER = """
net: "net.prototxt" test_iter: 3 test_interval: 10 base_lr: 0.01 type: "Adam" momentum: 0.9
momentum2: 0.999 delta: 1e-3 lr_policy: "fixed" display: 5 max_iter: 12 random_seed: 1 snapshot: 6
snapshot_prefix: "run"
"""


def test_servers_hold_about_as_much_each_and_small_buckets_stay_whole() -> None:
    sizes = [100, 5_000_000, 16, 48_000, 32]
    buckets, start = [], 0
    for size in sizes:
        stop = start + -(-size // 16) * 16
        buckets.append(Bucket(start, stop, 0))
        start = stop
    pieces = divide(buckets, 3)
    for index, bucket in enumerate(buckets):
        own = [piece for piece in pieces if piece.bucket == index]
        assert own[0].start == bucket.start
        assert own[-1].stop == bucket.stop
        assert all(a.stop == b.start for a, b in itertools.pairwise(own))
        assert all(piece.start % 16 == 0 for piece in own)
        assert len(own) == (3 if bucket.nbytes > MAX_UNDIVIDED else 1)
    held = [sum(p.stop - p.start for p in pieces if p.server == server) for server in range(3)]
    assert max(held) - min(held) <= MAX_UNDIVIDED / 4 + 3 * 16


@pytest.mark.parametrize("text", ["", "ssp", "ssp:", "ssp:-1", "sync:1", "backup", "eventual"])
def test_what_is_no_consistency_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="choose sync, async, ssp:N with"):
        Consistency.parse(text)


@needs_mpi
@pytest.mark.parametrize(
    ("workers", "servers"),
    [(2, 2), *(pytest.param(*n, 1, marks=pytest.mark.long) for n in ((1,), (3,)))],
)
def test_sync_is_one_process_with_the_whole_batch(
    workers: int, servers: int, tmp_path: Path
) -> None:
    ranks = workers + servers
    all_say("done", ranks, "tests.study.servers.serving", str(tmp_path), "sync", str(servers))


@pytest.mark.long
@needs_mpi
def test_sync_is_the_same_between_two_hosts(tmp_path: Path) -> None:
    with hosts(2, "1gbit", tmp_path) as made:
        if made is None:
            pytest.skip("network namespaces are not permitted here")
        done = made.mpiexec(2, "-m", "tests.study.servers.serving", str(tmp_path), "sync", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 4


@pytest.mark.long
@needs_mpi
def test_no_worker_gets_further_ahead_than_it_may(tmp_path: Path) -> None:
    all_say("done", 4, "tests.study.servers.serving", str(tmp_path), "bounded", "2")


@needs_mpi
def test_updates_do_without_backup_workers(tmp_path: Path) -> None:
    all_say("done", 3, "tests.study.servers.serving", str(tmp_path), "backup", "1")


@needs_mpi
@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("worker killed", "signal 9"),
        ("server fails", "rank 2 of 3"),
        pytest.param("server killed", "signal 9", marks=pytest.mark.long),
        pytest.param("server hangs", "waited too long", marks=pytest.mark.long),
    ],
)
def test_all_end_with_the_one_that_fails(mode: str, told: str, tmp_path: Path) -> None:
    done = mpiexec(
        3, "-m", "tests.study.servers.serving", str(tmp_path), "failing", mode, timeout=60
    )
    assert done.returncode != 0
    assert told in done.stdout + done.stderr
    assert "done" not in done.stdout


@needs_mpi
def test_the_state_is_in_the_snapshots_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    write_run(tmp_path, SOLVER, 6)
    options = ["--servers", "1", "--bucket_mb", "0.001"]
    log = train(tmp_path, 3, *options)
    assert "12 records per update (6 records on each of 2 ranks)" in log
    assert "1 servers hold" in log
    names = ["run_iter_12.caffemodel", "run_iter_12.solverstate"]
    whole = [(tmp_path / name).read_bytes() for name in names]
    for name in names:
        (tmp_path / name).unlink()
    train(tmp_path, 3, *options, "--snapshot", "run_iter_6.solverstate")
    resumed = [(tmp_path / name).read_bytes() for name in names]
    assert resumed[0] == whole[0]
    state = read_state(tmp_path / names[1])
    assert any(value for blob in state.history for value in blob.data)
    assert resumed[1] == whole[1]
    before = saved(tmp_path / names[0])
    train(tmp_path, 2, "--snapshot", "run_iter_6.solverstate")  # both train, none serves
    assert saved(tmp_path / names[0]) == pytest.approx(before, rel=1e-4, abs=1e-6)


@pytest.mark.long
@needs_mpi
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--servers", "2"], "--servers 2 of 2 ranks leave none to train"),
        (["--servers", "1", "--consistency", "ssp"], "--consistency ssp: choose sync"),
        (["--servers", "1", "--consistency", "backup:1"], "would ignore all 1 workers"),
        (["--servers", "1", "--propagation", "sharded"], "with --servers weights come from these"),
        (["--servers", "1"], "LAMB, larc and local_lr_auto need the norms of whole parameters"),
    ],
)
def test_refusals(options: list[str], message: str, tmp_path: Path) -> None:
    write_run(tmp_path, SOLVER + ("larc: true" if "larc" in message else ""), 6)
    command = ["-m", "osucaffe", "train", "--solver", "solver.prototxt", *options]
    done = mpiexec(2, *command, cwd=tmp_path, timeout=60)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
@needs_mpi
def test_killed_at_random_all_end_and_resume_exactly() -> None:
    assert len(kills.main(3)) == 3
