"""The MPI communicator: it carries out schedules over MPI's send and receive.

MPI's native collectives are available as the algorithm "native", to compare with. Use it only where
`job.find_job` found a job: importing this module starts MPI.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from .algorithms import Operation, Schedule, Step, added, schedule
from .communicator import Communicator
from .gpu.kernels import DeviceMath
from .host import HostMath
from .job.watchdog import Watchdog
from .tuning.table import INSTEAD, Choice, Selection

_TYPES = {"float32": MPI.FLOAT, "float64": MPI.DOUBLE, "int32": MPI.INT32_T}
_TAG = 1
_SPINS = 50  # polls of a background thread before it begins to sleep
_NAP = 50e-6, 1e-3  # the first and the longest nap, seconds
Requests = list[MPI.Request]


class Mpi(Communicator):
    """Ranks of an MPI communicator (which is duplicated, so that messages never mix).

    math: adds the arrays, in host memory (by default) or on a GPU; the latter needs a CUDA-aware
    MPI library, which sends from device memory.
    selection: picks an algorithm for each operation. level: "node" where the ranks share memory,
    "network" where they do not. yields_core: whether waiting yields the core (default: in the
    background, where another thread computes).
    """

    def __init__(
        self,
        comm: MPI.Comm,
        *,
        math: HostMath | DeviceMath | None = None,
        selection: Selection | None = None,
        level: str = "node",
        background: bool = False,
        yields_core: bool | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        super().__init__(comm.rank, comm.size, level=level, background=background)
        self._comm = comm.Dup()
        self._selection = selection or Selection()
        self._watchdog = watchdog or Watchdog(0, print)
        self._math = math or HostMath()
        yields_core = background if yields_core is None else yields_core
        self._wait: Callable[[Requests], object] = (
            _wait_politely if yields_core else MPI.Request.Waitall
        )
        self._now = "", 0, ""
        """The operation under way, its bytes and its algorithm,"""
        self._step = Step()
        """and what is awaited of it."""

    def run(self, operation: Operation, array: Any, root: int = 0) -> None:
        """Do one collective operation with the algorithm that is selected for it; what is on a
        GPU must be ready."""
        name, chunk = self._choose(operation, array)
        with self._watched(operation, array, name):
            if name == "native":
                self._run_native(operation, array, root)
                return
            elements = chunk // array.itemsize
            plan = schedule(operation, name, self.rank, self.size, array.size, root, elements)
            self._carry_out(plan, array)

    def _choose(self, operation: Operation, array: Any) -> Choice:
        choice = self._selection.choose(operation, array.nbytes, self.size, self.level)
        if choice.algorithm == "native" and not self._takes(operation, array.dtype.name):
            return choice._replace(algorithm=INSTEAD[operation])
        return choice

    def describe_algorithm(self, operation: Operation, array: Any) -> str:
        """The one that is selected for it."""
        return self._choose(operation, array).algorithm

    def transfer(self, array: Any, step: Step) -> None:
        """Do the transfers of a step."""
        with self._watched("transfers", array):
            self._carry_out((step,), array)

    def close(self) -> None:
        """Wait for what is under way; free the communicator (all ranks call it together)."""
        super().close()
        self._comm.Free()

    def _watched(self, operation: str, array: Any, name: str = "") -> Any:
        self._now = operation, array.nbytes, name
        self._step = Step()
        return self._watchdog.watch(self._report)

    def _report(self) -> str:
        operation, nbytes, name = self._now
        ranks = sorted({transfer.peer for transfer in (*self._step.sends, *self._step.receives)})
        peers = f"rank {', '.join(map(str, ranks))}" if ranks else "the other ranks"
        by = f" by {name}" if name else ""
        return f"In {operation} of {nbytes:,} bytes{by}: waiting for {peers}"

    # -- schedules -------------------------------------------------------------------------------

    def _carry_out(self, plan: Schedule, array: Any) -> None:
        """Run a schedule. Data to be added is received into one of two halves of scratch memory, so
        that the next step's messages can arrive while this one's are added. All is
        added when the step ends: the next one may send it.
        """
        item = array.itemsize
        data = array.view(np.uint8)
        most = max(map(added, plan), default=0) * item
        halves = self._math.scratch(2 * most)[: 2 * most].reshape(2, most)
        coming = self._post_added(plan, 0, halves, array)
        for index, step in enumerate(plan):
            requests, sums = coming
            for peer, start, stop, add in step.receives:
                if not add:
                    requests.append(self._receive(data[start * item : stop * item], peer))
            for peer, start, stop, _ in step.sends:
                piece = data[start * item : stop * item]
                requests.append(self._comm.Isend([piece, MPI.BYTE], peer, _TAG))
            coming = self._post_added(plan, index + 1, halves, array)
            self._step = step
            self._wait(requests)
            for target, arrived in sums:
                self._math.add(target, arrived)
            if sums:
                self._math.finish()

    def _post_added(
        self, plan: Schedule, index: int, halves: Any, array: Any
    ) -> tuple[Requests, list[tuple[Any, Any]]]:
        """Begin to receive what the step at `index` adds: to which parts of the array, from where
        in scratch memory."""
        requests: Requests = []
        sums = []
        offset = 0
        for peer, start, stop, add in plan[index].receives if index < len(plan) else ():
            if add:
                nbytes = (stop - start) * array.itemsize
                arrived = halves[index % 2][offset : offset + nbytes]
                requests.append(self._receive(arrived, peer))
                sums.append((array[start:stop], arrived.view(array.dtype)))
                offset += nbytes
        return requests, sums

    def _receive(self, piece: Any, peer: int) -> MPI.Request:
        return self._comm.Irecv([piece, MPI.BYTE], peer, _TAG)

    # -- native collectives ----------------------------------------------------------------------

    def _takes(self, operation: Operation, dtype: str) -> bool:
        """Whether MPI has the operation for such arrays: it does not add 16-bit floats."""
        moves = operation in (Operation.BROADCAST, Operation.ALL_GATHER)
        return self._math.native and (dtype in _TYPES or moves)

    def _run_native(self, operation: Operation, array: np.ndarray, root: int) -> None:
        """Do one of the operations in `NATIVE`."""
        if operation == Operation.BROADCAST:
            self._wait([self._comm.Ibcast([array.view(np.uint8), MPI.BYTE], root)])
        elif operation == Operation.ALL_REDUCE:
            buffer = [array, _TYPES[array.dtype.name]]
            self._wait([self._comm.Iallreduce(MPI.IN_PLACE, buffer)])
        elif operation == Operation.REDUCE:
            buffer = [array, _TYPES[array.dtype.name]]
            here = self.rank == root
            given, got = (MPI.IN_PLACE, buffer) if here else (buffer, None)
            self._wait([self._comm.Ireduce(given, got, MPI.SUM, root)])
        else:
            parts = [self.part(array.size, rank) for rank in range(self.size)]
            counts = [(stop - start) * array.itemsize for start, stop in parts]
            starts = [start * array.itemsize for start, _ in parts]
            receive = [array.view(np.uint8), counts, starts, MPI.BYTE]
            self._wait([self._comm.Iallgatherv(MPI.IN_PLACE, receive)])


def _wait_politely(requests: Requests) -> None:
    """Wait without keeping a core busy: it belongs to the thread that computes."""
    spins, nap = _SPINS, _NAP[0]
    while not MPI.Request.Testall(requests):
        if spins:
            spins -= 1
            continue
        time.sleep(nap)
        nap = min(2 * nap, _NAP[1])
