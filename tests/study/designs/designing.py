"""What the ranks run that test_designs.py starts: sums of all kinds, and local steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from osucaffe.backends.cpu import Cpu
from osucaffe.comm.communicator import Serial
from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import Job
from osucaffe.comm.job.topology import discover
from osucaffe.parallel.buckets import Bucket
from osucaffe.parallel.config import ParallelConfig
from osucaffe.parallel.data_parallel import DataParallel
from osucaffe.study.designs.reproducible import ReproducibleSum
from osucaffe.study.profiling.recorder import Profile
from tests.parallel.equivalence import (
    ADAM,
    BATCH,
    SGD,
    Case,
    check,
    job_with_data,
    make_solver,
    weights,
)

LIMITS = ("topk:1", "randomk:1", "powersgd:1000")
"""Nothing is left out."""


def train(job: Job, source: Path, config: ParallelConfig, backend: Cpu | None = None) -> Any:
    """A solver that trains with all ranks."""
    group = DataParallel(job, discover(job), CommConfig(), config)
    return make_solver(source, BATCH, SGD, backend, group=group)


def topk(values: np.ndarray, share: float) -> np.ndarray:
    k = int(np.ceil(share * values.size))
    sent = np.zeros_like(values)
    chosen = np.argsort(-np.abs(values))[:k]
    sent[chosen] = values[chosen]
    return sent


def eight_bits(values: np.ndarray) -> np.ndarray:
    sent = np.zeros_like(values)
    for start in range(0, len(values), 256):
        block = values[start : start + 256]
        scale = np.abs(block).max() / 127
        sent[start : start + 256] = np.round(block / scale) * scale if scale else 0
    return sent


def signs(values: np.ndarray) -> np.ndarray:
    sent = np.zeros_like(values)
    for start in range(0, len(values), 1024):
        block = values[start : start + 1024]
        sent[start : start + 1024] = np.where(block >= 0, 1, -1) * np.abs(block).mean()
    return sent


def check_local_compression(job: Job, source: Path) -> None:
    """What is sent and kept of random gradients is what NumPy makes of each rank's by itself."""
    cases = {"topk:0.05": lambda v: topk(v, 0.05), "8bit": eight_bits, "sign": signs}
    for compression, compress in cases.items():
        solver = train(job, source, ParallelConfig(compression=compression))
        hook: Any = solver.group._exchange._hook
        size = solver.net.arena.learned
        bucket = Bucket(16, size, 0)
        real = elements(solver)[16:]
        kept = [np.zeros(size - 16, np.float32) for _ in range(job.size)]
        for iteration in range(3):
            drawn = [real * random(rank, iteration, size - 16) for rank in range(job.size)]
            gradients = drawn[job.rank].copy()
            hook.reduce(bucket, gradients)
            values = [residual + new for residual, new in zip(kept, drawn, strict=True)]
            sent = [real * compress(each) for each in values]
            kept = [all_ - part for all_, part in zip(values, sent, strict=True)]
            np.testing.assert_allclose(gradients, sum(sent), atol=1e-5)
            own = hook.residual.flat.array[16:size]
            np.testing.assert_allclose(own, kept[job.rank], atol=1e-5)
        hook.settle()
        expected = sum(kept) if job.rank == 0 else 0 * kept[0]
        np.testing.assert_allclose(hook.residual.flat.array[16:size], expected, atol=1e-5)
        solver.close()


def random(rank: int, iteration: int, size: int) -> np.ndarray:
    return np.random.default_rng([rank, iteration]).standard_normal(size, np.float32)


def elements(solver: Any) -> np.ndarray:
    """1 for each element of a parameter that learns, 0 for padding."""
    arena = solver.net.arena
    real = np.zeros(arena.learned, np.float32)
    for start, _, parameter in arena.segments:
        real[start : start + parameter.blob.data.size] = 1
    return real


def check_conserved(job: Job, source: Path, compression: str) -> None:
    """What was sent, and what the ranks have kept, are together all gradients, and all ranks have
    got the same bits."""
    solver = train(job, source, ParallelConfig(compression=compression))
    hook: Any = solver.group._exchange._hook
    size = solver.net.arena.learned
    sent, given = np.zeros(size, np.float64), np.zeros(size, np.float64)
    for iteration in range(4):
        solver.iteration = iteration
        gradients = elements(solver) * random(job.rank, iteration, size)
        given += np.sum(job.gather(gradients.copy()), axis=0)
        hook.reduce(Bucket(0, size, 0), gradients)
        assert len({each.tobytes() for each in job.gather(gradients)}) == 1
        sent += gradients
        kept = np.sum(job.gather(hook.residual.flat.array[:size].copy()), axis=0)
        np.testing.assert_allclose(sent + kept, given, atol=1e-4)
        assert 0.05 * np.linalg.norm(given) < np.linalg.norm(kept)
    solver.close()


def check_low_rank(job: Job, source: Path, *, onednn: bool) -> None:
    """Gradients of rank 2 travel whole by PowerSGD of rank 2, but not of rank 1; that is the
    projection that the paper's algorithm gives. onednn: in memory layouts of its own."""
    for rank, exact in ((2, True), (1, False)):
        backend = Cpu(threads=1, onednn=onednn)
        solver = train(job, source, ParallelConfig(compression=f"powersgd:{rank}"), backend)
        hook: Any = solver.group._exchange._hook
        net, written = solver.net, []
        for index, (start, _, parameter) in enumerate(net.arena.segments):
            matrix = next((each for each in hook._matrices if each.start == start), None)
            if matrix is None:
                continue
            shape = matrix.rows, parameter.blob.data.count // matrix.rows
            draw = np.random.default_rng(index).standard_normal
            whole = draw((shape[0], 2), np.float32) @ draw((2, shape[1]), np.float32)
            mine = (whole * (job.rank + 1)).reshape(parameter.blob.shape)
            backend.write(parameter.blob.diff, mine)
            basis = np.linalg.qr(3 * whole @ hook._last(matrix, shape[1]))[0]
            written.append((parameter, 3 * whole, basis))
        assert len(written) >= 2
        hook.reduce(Bucket(0, net.arena.learned, 0), net.arena.diff.array[: net.arena.learned])
        for parameter, whole, basis in written:
            total = whole if exact else basis @ (basis.T @ whole)
            assert exact or not np.allclose(total, whole, atol=0.1)
            found = backend.read(parameter.blob.diff).reshape(whole.shape)
            np.testing.assert_allclose(found, total, atol=1e-3)
        solver.close()


def check_reproducible(job: Job, source: Path) -> None:
    """Sums of the same addends have the same bits, whatever rank has which of them, in any order
    and cut anywhere; they are near the exact ones. An infinity stays in its parameter."""
    solver = train(job, source, ParallelConfig(reproducible=True))
    net, hook = solver.net, solver.group._exchange._hook
    alone: Any = ReproducibleSum(Serial(), net, lambda: 0)
    size, middle = net.arena.learned, net.arena.segments[2][0]
    addends = [random(0, n, size) * 10.0 ** (7 * n % 31 - 20) for n in range(9)]
    addends += [random(0, n, size) for n in range(9, 12)]
    for addend in addends:
        addend[middle:] *= 1e-25  # parameters have digits at places of their own
    expected = sums(alone, addends, [size])
    exact, most = np.sum(addends, axis=0, dtype=np.float64), np.abs(addends).max(axis=0)
    for start, stop, parameter in net.arena.segments:
        if parameter.lr_mult:
            error = np.abs(expected - exact)[start:stop].max() / most[start:stop].max()
            assert 0 < error < len(addends) * 2.0**-22, error
    for seed in range(6):
        draw = np.random.default_rng(seed)
        owner = draw.integers(0, job.size, len(addends))
        mine = [addends[n] for n in draw.permutation(len(addends)) if owner[n] == job.rank]
        ends = [size] if seed % 2 else [middle, size]
        found = sums(hook, [*mine, np.zeros(size, np.float32)], ends)
        assert found.tobytes() == expected.tobytes()
    addends[0][5] = np.inf
    found = sums(hook, addends[job.rank :: job.size], [size])
    assert np.isnan(found[: net.arena.segments[0][1]]).all()
    assert found[middle:].tobytes() == expected[middle:].tobytes()
    solver.close()


def sums(hook: Any, addends: list[np.ndarray], ends: list[int]) -> np.ndarray:
    """The sums of all ranks' addends, bucket by bucket."""
    *others, last = [addend.astype(np.float32) for addend in addends]
    for gradients in others:
        hook.take(gradients)
    for start, stop in zip([0, *ends[:-1]], ends, strict=True):
        hook.reduce(Bucket(start, stop, 0), last[start:stop])
    return last * hook.comm.size


def check_outer_step(job: Job, source: Path) -> None:
    """Two rounds of DiLoCo's outer step from weights that the ranks have come to."""
    rate, momentum = 0.7, 0.9
    config = ParallelConfig(local_steps=2, outer_lr=rate, outer_momentum=momentum)
    solver = train(job, source, config)
    solver.step(1)  # its end averages
    exchange, arena = solver.group._exchange, solver.net.arena
    common, size = arena.data.array.copy(), arena.learned
    velocity = exchange.buffers[0].flat.array.copy()
    for round_ in range(2):
        own = [common[:size] + random(rank, round_, size) for rank in range(job.size)]
        arena.data.array[:size] = own[job.rank]
        for solver.iteration in (2 * round_, 2 * round_ + 1):
            exchange.updated()
        difference = common[:size] - np.mean(own, axis=0)
        velocity[:size] = momentum * velocity[:size] + difference
        common[:size] -= rate * (difference + momentum * velocity[:size])
        np.testing.assert_allclose(arena.data.array[:size], common[:size], atol=1e-5)
    solver.close()


def check_rounds(job: Job, source: Path) -> None:
    """Ranks drift apart within a round, and agree behind it; before `local_after` always."""
    solver = train(job, source, ParallelConfig(local_steps=3, local_after=4))
    alike = []
    solver.group.begin()
    for _ in range(9):
        solver._iterate()
        solver.iteration += 1
        alike.append(len({each.tobytes() for each in job.gather(weights(solver)[-1])}) == 1)
    assert alike == [True] * 4 + [False, True, False, False, True], alike
    solver.close()


def check_messages(job: Job, source: Path) -> None:
    """Hooks send what they say that they send, on which predictions rest; a profile shows it."""
    for text in ("topk:0.05", "randomk:0.1", "powersgd:1", "8bit", "sign", "none"):
        config = ParallelConfig(compression=text, reproducible=text == "none", bucket=512)
        solver = train(job, source, config)
        solver.step(1)
        profile = Profile(solver.group.comm)
        profile.recording = True
        solver.step(1)
        design, exchange = solver.group._hook, solver.group._exchange
        assert len(exchange.plan.gradients) > 1
        for send, noted in zip(exchange.plan.gradients, profile.read(), strict=True):
            bucket = Bucket(send.start, send.stop, 0)
            told = [each for each in design.messages(solver.net, bucket, job.size) if each[1]]
            sent = [(each.operation, each.nbytes // 4) for each in noted.messages]
            assert (noted.name, noted.nbytes) == ("all_reduce", bucket.nbytes)
            assert sent == told, (text, sent, told)
        solver.close()


def main() -> None:
    with job_with_data() as (job, folder):
        source, references = folder / "lmdb", dict[Any, Any]()
        for compression in LIMITS:
            for bucket in (512, 1 << 20):
                config = ParallelConfig(compression=compression, bucket=bucket)
                check(Case(config, settings=SGD + " clip_gradients: 0.5"), job, source, references)
        blocking = ParallelConfig("blocking", compression="topk:1")
        check(Case(blocking, settings=ADAM), job, source, references)
        for settings in (SGD, SGD + " iter_size: 2"):
            check(Case(ParallelConfig(local_steps=1), settings=settings), job, source, references)
        both = ParallelConfig(local_steps=1, compression="topk:1")
        check(Case(both), job, source, references)
        check_local_compression(job, source)
        for compression in ("topk:0.1", "randomk:0.1", "powersgd:1", "sign"):
            check_conserved(job, source, compression)
        for onednn in (False, True):
            check_low_rank(job, source, onednn=onednn)
        check_reproducible(job, source)
        for settings in (SGD, SGD + " iter_size: 2 clip_gradients: 0.5"):
            reproducible = ParallelConfig(bucket=512, reproducible=True)
            check(Case(reproducible, settings=settings), job, source, references)
        check_outer_step(job, source)
        check_rounds(job, source)
        check_messages(job, source)
    print(f"rank {job.rank} alike\n", end="")


if __name__ == "__main__":
    main()
