"""What the ranks run that test_servers.py starts: workers and servers against one process."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from pathlib import Path

from osucaffe.backends.cpu import Cpu
from osucaffe.comm.channels import KINDS
from osucaffe.comm.channels.create import make_channel
from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import MpiJob
from osucaffe.comm.job.topology import discover
from osucaffe.layers.reading.feed import Feed
from osucaffe.parallel.config import ParallelConfig
from osucaffe.rpc.ucx import is_available
from osucaffe.study.servers import shards
from osucaffe.study.servers.server import Server
from osucaffe.study.servers.shards import Consistency
from osucaffe.study.servers.training import ServerDataParallel, assign_roles
from tests.parallel.equivalence import BATCH, SGD, assert_near, job_with_data, make_solver, weights

FIXED = ' lr_policy: "fixed"'
SETTINGS = {
    "SGD": SGD,
    "iter_size": SGD + " iter_size: 2",
    "clipped": SGD + " iter_size: 2 clip_gradients: 0.5",
    "Nesterov": 'type: "Nesterov" momentum: 0.9 base_lr: 0.02' + FIXED,
    "AdaGrad": 'type: "AdaGrad" momentum: 0 delta: 1e-3 base_lr: 0.01' + FIXED,
    "RMSProp": 'type: "RMSProp" momentum: 0 rms_decay: 0.9 delta: 1e-2 base_lr: 0.002' + FIXED,
    "AdaDelta": 'type: "AdaDelta" momentum: 0.95 delta: 1e-3 base_lr: 1' + FIXED,
    "Adam": 'type: "Adam" momentum: 0.9 momentum2: 0.999 delta: 1e-3 base_lr: 0.01'
    ' lr_policy: "step" gamma: 0.5 stepsize: 3',
}
DESIGNS = [
    ParallelConfig(bucket=512),
    ParallelConfig(bucket=1 << 20),
    ParallelConfig("blocking"),
    ParallelConfig(bucket=0),
]
ITERATIONS = 8
HERE = {"grpc": importlib.util.find_spec("grpc") is not None, "ucx": is_available()}
KINDS_HERE = [kind for kind in KINDS if HERE.get(kind, True)]


def sync(job: MpiJob, source: Path, servers: int) -> None:
    """All solvers, by all designs in turn, as one process with the whole batch."""
    for number, (name, settings) in enumerate(SETTINGS.items()):
        design = DESIGNS[number % len(DESIGNS)]
        kind = KINDS_HERE[number % len(KINDS_HERE)]
        channel = make_channel(job, discover(job), kind)
        roles = assign_roles(job, servers, Consistency.parse("sync"), channel)
        if roles.serves:
            roles.serve(Cpu(threads=1, onednn=False))
            continue
        group = ServerDataParallel(roles, discover(roles.part), CommConfig(), design)
        together = make_solver(source, BATCH, settings, group=group)
        together.step(ITERATIONS // 2)
        together.test_all()
        together.step(ITERATIONS - ITERATIONS // 2)
        own = [each.tobytes() for each in weights(together)]
        assert all(each == own for each in roles.part.gather(own)), f"{name}: workers differ"
        group.synchronize_weights(history=True)
        if not group.rank:
            alone = make_solver(source, BATCH * roles.workers, settings)
            alone.step(ITERATIONS)
            names = [f"{name}, {each.name}" for each in together.net.parameters]
            assert_near(names, weights(together), weights(alone))
            found, expected = together.optimizer.read_history(), alone.optimizer.read_history()
            assert_near([f"history of {name}"] * len(found), found, expected, 1e-4)
        together.close()
        assert len(group.lags) == 1


def bounded(job: MpiJob, source: Path, servers: int) -> None:
    """A slow worker holds the others back as far as it is told; all learn, and end alike."""
    for text, most in (("ssp:0", 0), ("ssp:2", 2), ("async", None)):
        channel = make_channel(job, discover(job), "mpi" if most is None else "adaptive")
        roles = assign_roles(job, servers, Consistency.parse(text), channel)
        if roles.serves:
            roles.serve(Cpu(threads=1, onednn=False))
            continue
        group = ServerDataParallel(
            roles, discover(roles.part), CommConfig(), ParallelConfig(bucket=512)
        )
        solver = make_solver(source, BATCH, SGD, group=group)
        if group.rank == 0:
            request = solver.request
            solver.request = lambda request=request: (time.sleep(0.02), request())[1]  # type: ignore[misc]
        solver.step(30)
        solver.test_all()
        group.check("in the test")
        solver.close()
        largest = len(group.lags) - 1
        if most is None:
            assert largest > 4, f"async: nobody got ahead: {group.lags}"
        else:
            assert largest == most, f"{text}: {group.lags}"


def backup(job: MpiJob, source: Path, servers: int) -> None:
    """One worker of two is missing: the other trains alone, as a process with its batches does, and
    waits only at the end, for one that then skips what it has missed."""
    for settings in (SGD, SGD + " clip_gradients: 0.5"):
        roles = assign_roles(job, servers, Consistency.parse("backup:1"))
        if roles.serves:
            roles.serve(Cpu(threads=1, onednn=False))
            continue
        group = ServerDataParallel(
            roles, discover(roles.part), CommConfig(), ParallelConfig(bucket=512)
        )
        solver = make_solver(source, BATCH, settings, group=group)
        done = source.parent / f"done {'clip' in settings}"
        if group.rank == 0:
            request = solver.request
            solver.request = lambda solver=solver, done=done, request=request: (  # type: ignore[misc]
                done.touch() if solver.iteration == ITERATIONS - 1 else None,
                request(),
            )[1]
        else:
            given = solver.optimizer.set_rate
            solver.optimizer.set_rate = lambda *rest, given=given, done=done: (  # type: ignore[method-assign]
                wait_for(done),
                given(*rest),
            )[1]
        solver.step(ITERATIONS)
        group.check("in the test")
        found = weights(solver)
        expected_skips = [0, ITERATIONS - 1]
        skipped = roles.part.gather(group._exchange.skipped)
        assert skipped == expected_skips, skipped
        if not group.rank:
            alone = make_solver(source, BATCH, settings)
            for layer in alone.net.layers:
                if isinstance(layer, Feed):
                    layer.split(0, 2)
            alone.step(ITERATIONS)
            names = [f"{settings}, {each.name}" for each in solver.net.parameters]
            assert_near(names, found, weights(alone))
        solver.close()


def wait_for(path: Path) -> None:
    """Return when it exists."""
    while not path.exists():
        time.sleep(0.01)


def failing(job: MpiJob, source: Path, mode: str) -> None:
    """What happens to the server, the last rank, or to worker 1, at iteration 5."""
    roles = assign_roles(job, 1, Consistency.parse("sync"))

    def fail(*given: object) -> str:
        if mode.endswith("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif mode == "server hangs":
            time.sleep(600)
        raise ZeroDivisionError("a bug of a server")

    if roles.serves:
        if mode.startswith("server"):
            updates = iter(range(6))
            make = Server._update
            Server._update = lambda *given: make(*given) if next(updates, None) else fail()  # type: ignore[assignment,method-assign]
        roles.serve(Cpu(threads=1, onednn=False))
        return
    comm_config = CommConfig(timeout=1.0 if mode == "server hangs" else 60.0)
    group = ServerDataParallel(roles, discover(roles.part), comm_config, ParallelConfig())
    solver = make_solver(source, BATCH, SGD, group=group)
    if mode.startswith("worker") and group.rank == 1:
        updates = iter(range(5))
        solver.request = lambda: "none" if next(updates, None) else fail()
    solver.step(50)


def main() -> None:
    mode, given = sys.argv[2:4]
    shards.MAX_UNDIVIDED = 512
    with job_with_data() as (job, folder):
        assert isinstance(job, MpiJob)
        if mode == "failing":
            failing(job, folder / "lmdb", given)
        else:
            {"sync": sync, "bounded": bounded, "backup": backup}[mode](
                job, folder / "lmdb", int(given)
            )
    print(f"rank {job.rank}: done\n", end="")


if __name__ == "__main__":
    main()
