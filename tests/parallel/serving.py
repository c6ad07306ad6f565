"""What the ranks run that test_servers.py starts: workers and servers against one process."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from osucaffe.backends.cpu import Cpu
from osucaffe.comm.create import Wanted
from osucaffe.comm.job import MpiJob
from osucaffe.comm.topology import discover
from osucaffe.parallel import shards
from osucaffe.parallel.design import Design
from osucaffe.parallel.served import Served, assign_roles
from osucaffe.parallel.server import Server
from osucaffe.parallel.shards import Consistency

from .equivalence import BATCH, SGD, job_with_data, make_solver, weights

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
DESIGNS = [Design(bucket=512), Design(bucket=1 << 20), Design("blocking"), Design(bucket=0)]
ITERATIONS = 8


def sync(job: MpiJob, source: Path, servers: int) -> None:
    """All solvers, by all designs in turn, as one process with the whole batch."""
    for number, (name, settings) in enumerate(SETTINGS.items()):
        design = DESIGNS[number % len(DESIGNS)]
        roles = assign_roles(job, servers, Consistency.parse("sync"))
        if roles.serves:
            roles.serve(Cpu(threads=1, onednn=False))
            continue
        alone = make_solver(source, BATCH * roles.workers, settings)
        alone.step(ITERATIONS)
        team = Served(roles, discover(roles.part), Wanted(), design)
        together = make_solver(source, BATCH, settings, team=team)
        together.step(ITERATIONS // 2)
        together.test_all()
        together.step(ITERATIONS - ITERATIONS // 2)
        names = [each.name for each in together.net.parameters]
        for which, got, want in zip(names, weights(together), weights(alone), strict=True):
            error, size = np.linalg.norm(got - want), np.linalg.norm(want)
            assert error <= 1e-5 * size, f"{name}, {which}: off by {error / size:.2g}"
        team.settle(history=True)
        if not team.rank:
            found, expected = together.optimizer.read_history(), alone.optimizer.read_history()
            for got, want in zip(found, expected, strict=True):
                error, size = np.linalg.norm(got - want), np.linalg.norm(want)
                assert error <= 1e-4 * size, f"{name}: history off by {error / size:.2g}"
        together.close()
        assert len(team.lags) == 1


def bounded(job: MpiJob, source: Path, servers: int) -> None:
    """A slow worker holds the others back as far as it is told; all learn, and end alike."""
    for text, most in (("ssp:0", 0), ("ssp:2", 2), ("async", None)):
        roles = assign_roles(job, servers, Consistency.parse(text))
        if roles.serves:
            roles.serve(Cpu(threads=1, onednn=False))
            continue
        team = Served(roles, discover(roles.part), Wanted(), Design(bucket=512))
        solver = make_solver(source, BATCH, SGD, team=team)
        if team.rank == 0:
            request = solver._request
            solver._request = lambda request=request: (time.sleep(0.02), request())[1]  # type: ignore[misc]
        solver.step(30)
        solver.test_all()
        team.check("in the test")
        solver.close()
        largest = len(team.lags) - 1
        if most is None:
            assert largest > 4, f"async: nobody got ahead: {team.lags}"
        else:
            assert largest == most, f"{text}: {team.lags}"


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
    wanted = Wanted(timeout=1.0 if mode == "server hangs" else 60.0)
    team = Served(roles, discover(roles.part), wanted, Design())
    solver = make_solver(source, BATCH, SGD, team=team)
    if mode.startswith("worker") and team.rank == 1:
        updates = iter(range(5))
        solver._request = lambda: "none" if next(updates, None) else fail()
    solver.step(50)


def main() -> None:
    mode, given = sys.argv[2:4]
    shards.WHOLE = 512
    with job_with_data() as (job, folder):
        assert isinstance(job, MpiJob)
        if mode == "failing":
            failing(job, folder / "lmdb", given)
        else:
            {"sync": sync, "bounded": bounded}[mode](job, folder / "lmdb", int(given))
    print(f"rank {job.rank}: done\n", end="")


if __name__ == "__main__":
    main()
