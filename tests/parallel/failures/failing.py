"""What the ranks run that test_failures.py starts: training in which something fails."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from osucaffe.backends.cpu import Cpu
from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import find_job
from osucaffe.comm.job.topology import discover
from osucaffe.errors import UserError
from osucaffe.parallel.config import ParallelConfig
from osucaffe.parallel.data_parallel import DataParallel
from osucaffe.proto import NetParameter, SolverParameter, parse_text
from osucaffe.solvers import Solver
from tests.solvers.runs import REGRESSION

SETTINGS = (
    'base_lr: 0.1 lr_policy: "fixed" random_seed: 1 max_iter: 50 snapshot: 10 display: 1 '
    'snapshot_prefix: "{folder}/run" '
)
FOREVER = 600.0
"""Seconds: what hangs is ended by the watchdog long before."""


def fail(mode: str, solver: Solver, folder: Path) -> None:
    """What happens to rank 1, to the disk of rank 0, or to all ranks, at iteration 25."""
    rank = solver.group.rank
    if solver.iteration != 25:
        return
    if mode == "stuck":  # on all ranks: the host waits, as it does for a GPU that does
        solver.group._exchange.enqueues = True  # type: ignore[attr-defined]
        solver.backend.store = lambda *given: time.sleep(FOREVER)
    if rank == 0 and mode == "disk":
        solver._writer.wait()  # of iteration 20: only the next snapshot finds no folder
        folder.rename(folder.with_name("gone"))
    if rank == 0 and mode == "full":
        disk = SimpleNamespace(f_bavail=1, f_frsize=16, f_blocks=9)
        os.fstatvfs = lambda descriptor: disk  # type: ignore[assignment]
    if mode == "interrupt":
        raise KeyboardInterrupt
    if rank != 1:
        return
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "hang":
        time.sleep(FOREVER)
    elif mode == "raise":
        raise ZeroDivisionError("a bug on rank 1")
    elif mode == "refuse":
        raise UserError("record 7 of data.mdb is damaged")
    elif mode == "memory":
        raise MemoryError("Unable to allocate 9 TiB")
    elif mode == "leave":
        sys.exit(0)
    elif mode.startswith("exit"):
        child = os.fork()
        if not child:
            os._exit(0)  # which ends nothing but the child
        os.waitpid(child, 0)
        os._exit(int(mode.split()[1]))
    elif mode in ("drift", "silent"):
        solver.net.arena.data.array[0] += 1


def main() -> None:
    mode, folder = sys.argv[1], Path(sys.argv[2])
    job = find_job()
    with job.together():
        # Where all sleep, on a slow machine too each must wait for its own GPU, not for a rank.
        comm_config = CommConfig(timeout={"hang": 1.0, "stuck": 3.0}.get(mode, 60.0))
        group = DataParallel(job, discover(job), comm_config, ParallelConfig())
        param = parse_text(SETTINGS.format(folder=folder), SolverParameter)
        differs = mode == "differ" and job.rank == 1
        net = REGRESSION.replace("xavier", "gaussian") if differs else REGRESSION
        param.net_param.CopyFrom(parse_text(net, NetParameter))
        current: list[Any] = []

        def request() -> str:
            fail(mode, current[0], folder)
            return "none"

        current.append(
            Solver(
                param,
                Cpu(threads=1, onednn=False),
                request=request,
                group=group,
                check_interval=4 if mode == "silent" else 0,
            )
        )
        if mode == "resume":
            current[0].restore("auto")
        begun = current[0].iteration
        current[0].solve()
        print(f"rank {job.rank} done, resumed at {begun}\n", end="")


if __name__ == "__main__":
    main()
