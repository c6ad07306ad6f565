"""The job: the processes that mpiexec or srun started together, what they tell one another
besides arrays, and that they end together.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import platform
import posix
import re
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any, NoReturn

from ... import messages
from ...backends.cores import usable_cores
from ...errors import Fault, UserError
from ...files import remove_temporaries
from ...parent import end_with_parent
from .watchdog import GRACE, Watchdog

_NAMED = re.compile(r"(/dev/shm/mpich_shm_\S+)$", re.MULTILINE)


def unlink_segments() -> None:
    """Take away the names of the memory that MPICH shares among the ranks of a host.

    It does that itself when it ends, but not where a rank is killed or the job aborted: 1 MB per
    rank would stay until the machine restarts. The memory remains as long as a process has it, and
    only MPI_Init looks for it by its name: so all ranks must have left that.
    """
    with contextlib.suppress(OSError):  # where there is no /proc
        with open("/proc/self/maps") as file:
            names = set(_NAMED.findall(file.read()))
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another rank was faster
                os.unlink(name)


_LAUNCHERS = (
    ("PMI_SIZE", "mpiexec of MPICH, Intel MPI or MVAPICH"),
    ("OMPI_COMM_WORLD_SIZE", "mpiexec of Open MPI"),
    ("MPI_LOCALNRANKS", "mpiexec"),
    ("PALS_APID", "the launcher of the Cray"),
    ("PMIX_RANK", "a launcher that speaks PMIx"),
)

FAULT = 4
"""The exit code of a rank that ends the others, where nothing is wrong with what it was given."""

_exit = posix._exit
"""os._exit, also while that name is patched."""

_FORWARDING = 0.3
"""Seconds that a launcher gets to forward a message before it ends everything."""

_TURN = 1.0
"""Seconds between the ranks' messages, so that one rank reports an error that all have, and ends
the others before they do. Longer than _FORWARDING."""


class Job:
    """A process alone, which is a job of one rank. `MpiJob` is the other kind."""

    rank = 0
    size = 1

    @property
    def host(self) -> str:
        """The name of this machine."""
        return platform.node()

    @property
    def name(self) -> str:
        """How messages call this process."""
        return f"rank {self.rank} of {self.size} ({self.host})"

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's value (anything that can be pickled), on every rank."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of the ranks, on every rank."""
        return [value]

    def collect(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of the ranks, on rank 0; on the others nothing."""
        return [value]

    def agree(self, wish: int) -> int:
        """The greatest wish that any rank had in the call before this one (0 in the first).

        Ranks that ask at the same points of their work so get the same answers, and nobody waits.
        """
        return wish

    def barrier(self) -> None:
        """Return when every rank has called it."""

    def watch(self, awaited: str) -> contextlib.AbstractContextManager[None]:
        """What is done inside may not wait for this longer than the job allows."""
        return contextlib.nullcontext()

    def abort(self, message: str, code: int = FAULT) -> None:
        """Print a message and end every process of the job."""
        print(f"osucaffe: {message}", file=sys.stderr, flush=True)
        _exit(code)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """An exception inside is what a single process makes of it."""
        yield


class MpiJob(Job):
    """The ranks of MPI's world. `watchdog.timeout` says how long one may wait for the others."""

    _lag = 1
    """How many calls ago the answer of `agree` was requested."""

    def __init__(self) -> None:
        self.mpi: Any = start_mpi()
        self.world = self.mpi.COMM_WORLD
        self.rank = self.world.rank
        self.size = self.world.size
        self._control = self.world.Dup()
        self._control.Barrier()
        unlink_segments()
        self._wishes: deque[tuple[Any, Any, Any]] = deque()
        self.watchdog = Watchdog(0, self.expire)

    def broadcast_object(self, value: Any) -> Any:
        with self.watch("a message of rank 0"):
            return self._control.bcast(value)

    def gather(self, value: Any) -> list[Any]:
        with self.watch("messages of all ranks"):
            return self._control.allgather(value)

    def collect(self, value: Any) -> list[Any]:
        with self.watch("messages of all ranks"):
            return self._control.gather(value) or []

    def watch(self, awaited: str) -> contextlib.AbstractContextManager[None]:
        return self.watchdog.watch(lambda: f"Waiting for {awaited}")

    def agree(self, wish: int) -> int:
        import numpy as np

        answer = self._answer() if len(self._wishes) == self._lag else 0
        given, got = np.full(1, wish, np.int32), np.zeros(1, np.int32)
        request = self._control.Iallreduce(given, got, self.mpi.MAX)
        self._wishes.append((request, given, got))
        return answer

    def _answer(self) -> int:
        """What was agreed on the longest ago."""
        request, _, got = self._wishes.popleft()
        with self.watch("all ranks to end an iteration"):
            request.Wait()
        return int(got[0])

    def barrier(self) -> None:
        with self.watch("all ranks"):
            self._control.Barrier()

    def abort(self, message: str, code: int = FAULT) -> None:
        self._end(message, _FORWARDING, code)

    def expire(self, message: str) -> None:
        """End the job because this rank waited too long; the others may say the same first."""
        self._end(
            f"waited too long (--comm_timeout). {message}. "
            "A rank that does not report here is the one that hangs.",
            GRACE,
        )

    def _end(self, message: str, pause: float, code: int = FAULT) -> None:
        sys.stderr.write(f"osucaffe: {self.name}: {message}\n")
        sys.stderr.flush()
        remove_temporaries()
        time.sleep(pause)
        self.world.Abort(code)
        _exit(code)  # some libraries return, and kill this process a little later

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """An exception in the body ends all ranks: with its message, after a traceback if it comes
        from user code. Otherwise the others would wait for this one for ever. The same goes for
        os._exit, after which a launcher may end them and report success.
        """
        process, leave = os.getpid(), os._exit

        def abort_all(status: int) -> NoReturn:
            if os.getpid() == process:  # not a process that was forked
                self.abort(f"it was left by os._exit({status!r}), while the others go on")
            _exit(status)

        os._exit = abort_all
        try:
            yield
        except BaseException as error:
            if isinstance(error, UserError | KeyboardInterrupt):
                time.sleep(_TURN * min(self.rank, 4))
            if isinstance(error, SystemExit):
                text = f"it was left by sys.exit({error.code!r}), while the others go on"
            elif messages.is_users(error) or messages.debugging():
                traceback.print_exc()
                text = messages.tidy(repr(error))
            else:
                text = messages.explain(error)
            given = isinstance(error, UserError) and not isinstance(error, Fault)
            interrupted = isinstance(error, KeyboardInterrupt)
            self.abort(text, 130 if interrupted else 1 if given else FAULT)
            raise
        finally:
            os._exit = leave
            for request, *_ in self._wishes:  # which keeps what MPI writes to
                request.Wait()
            self._wishes.clear()


class Subset(MpiJob):
    """A subset of a job's ranks, which are a job among themselves, and end with it.

    comm: theirs, split from the job's. lag: `agree` answers what was wished that many calls ago, so
    that no rank is held up until it is as many calls ahead of another.
    """

    def __init__(self, job: MpiJob, comm: Any, *, lag: int = 1) -> None:
        self._job = job
        self.mpi = job.mpi
        self.world = comm
        self.rank, self.size = comm.rank, comm.size
        self.watchdog = job.watchdog
        self._control = comm.Dup()
        self._lag = lag
        self._wishes = deque()

    @property
    def name(self) -> str:
        return self._job.name

    def abort(self, message: str, code: int = FAULT) -> None:
        self._job.abort(message, code)

    def close(self) -> None:
        """All ranks of it call it together."""
        while self._wishes:
            self._answer()
        self._control.Free()


_job: Job | None = None


def find_job() -> Job:
    """The job that this process belongs to. MPI is started only if a launcher started us, whose
    end is then ours, too.

    UserError if one did and MPI for Python is missing, or belongs to another MPI library.
    """
    global _job
    if _job is None:
        launcher = launched_by()
        if launcher:
            end_with_parent(os.getppid())
        _job = MpiJob() if launcher else Job()
        started = int(os.environ.get(launcher[0], "1")) if launcher else 1
        if _job.size == 1 and launcher and launcher[0].endswith(("SIZE", "TASKS")) and started > 1:
            library = _job.mpi.Get_library_version().partition("\n")[0]  # type: ignore[attr-defined]
            raise UserError(
                f"{launcher[1]} started {started} processes, but each sees only itself: mpi4py "
                f"uses another MPI ({library.strip()}); start with that one's mpiexec, or install "
                "mpi4py for yours"
            )
    return _job


def leave(code: int) -> None:
    """End the ranks that a launcher started along with this process, which fails before it has
    joined them: they would wait for it for ever."""
    launcher = launched_by()
    if not code or _job is not None or launcher is None:
        return
    with contextlib.suppress(UserError):
        world = start_mpi().COMM_WORLD
        unlink_segments()
        if world.size > 1:
            time.sleep(_FORWARDING)
            world.Abort(code)


def launched_by() -> tuple[str, str] | None:
    """The environment variable that shows which launcher started this process, and its name."""
    for variable, name in _LAUNCHERS:
        if variable in os.environ:
            return variable, name
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return "SLURM_STEP_NUM_TASKS", "srun"
    return None


def cuda_aware(mpi: Any) -> bool:
    """Whether the MPI library takes pointers to device memory.

    Open MPI and MPICH have a function for this; for other libraries, the variable that turns the
    support on answers (Cray's older MPICH, MVAPICH2).
    """
    library = ctypes.CDLL(mpi.__file__)
    query = getattr(library, "MPIX_Query_cuda_support", None)
    if query is not None:
        return bool(query())
    return "1" in map(os.environ.get, ("MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA"))


def start_mpi() -> Any:
    """The module mpi4py.MPI, with MPI started in it. UserError where that fails."""
    local = os.environ.get("MPI_LOCALNRANKS") or os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or 1
    if int(local) > usable_cores():
        # Ranks that wait keep a core busy: where there are more than cores, they must yield it.
        os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    try:
        mpi4py = importlib.import_module("mpi4py")
        mpi4py.rc.thread_level = "multiple"
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"MPI for Python, which several processes need, cannot be used ({error}): "
            'pip install "osucaffe[mpi]", or mpi4py for the MPI of this machine'
        ) from error
