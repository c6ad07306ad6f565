"""What ranks run that note all that they do: layers, operations, waits, and messages.

Rank 0 prints a line of JSON: by design what each rank did in one iteration behind
others, and the sizes of the net's parameters.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from benchmarks.prediction.bench_predict_cases import BUCKET, config_of
from benchmarks.prediction.bench_predict_training import net_param
from osucaffe.backends.cpu import Cpu
from osucaffe.backends.tensor import Step, sequence
from osucaffe.comm.communicator import Handle
from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import find_job
from osucaffe.comm.job.topology import discover
from osucaffe.parallel.data_parallel import DataParallel
from osucaffe.parallel.plan import Note, Pass
from osucaffe.proto import caffe_pb2
from osucaffe.solvers import Solver
from osucaffe.study.iteration import DESIGNS
from osucaffe.study.profiling.recorder import composed
from osucaffe.study.times import sizes_of

CASES = {
    "SC-OBR": CommConfig("mpi"),
    "sharded": CommConfig("mpi"),
    "SC-B": CommConfig("hierarchical", group=2),
    "all-reduce": CommConfig("hierarchical", group=2),
}
"""With a group, as if so many ranks shared a host."""
Notes = list[list[Any]]


class Noting(DataParallel):
    """Notes what the solver's thread does, and what the communicator sends."""

    def __init__(self, *arguments: Any) -> None:
        from osucaffe.comm.mpi import Mpi  # starts MPI

        super().__init__(*arguments)
        self.events: Notes = []
        self.posts = 0
        self.messages: Notes = []
        """By operation: what this rank sends, and receives (peer, bytes)."""
        self.begun: list[tuple[int, int]] = []
        """Events and operations before each iteration, and behind the last."""
        self._note_iteration()
        for each in composed(self.comm):
            if isinstance(each, Mpi):
                link: Any = _Link(each._comm, self)
                each._comm = link
        begin, run = self.comm._begin, self.comm.run

        def note_begin(operation: str, array: Any, root: int, stream: Any) -> Handle:
            self.events.append(["post", operation, array.size, root])
            self.posts += 1
            handle = begin(operation, array, root, stream)
            return _Noted(handle, self.events, self.posts - self.begun[-1][1])

        def note_run(operation: str, array: Any, root: int = 0) -> None:
            self.messages.append([[], []])
            run(operation, array, root)

        own: Any = self.comm
        own._begin, own.run = note_begin, note_run

    def _note_iteration(self) -> None:
        self.begun.append((len(self.events), self.posts))

    def step(self, solver: Solver, *, accumulate: bool, update: bool) -> Step:
        run = super().step(solver, accumulate=accumulate, update=update)
        return sequence([self._note_iteration, run, self._note_iteration])

    def _plan_pass(self, *, accumulate: bool, update: bool) -> Pass:
        """Each layer's turn is noted between what is waited for and what is sent."""
        plan = super()._plan_pass(accumulate=accumulate, update=update)
        for number in range(len(self._solver.net.layers)):
            first, last = (
                Note(partial(self.events.append, [way, number])) for way in ("forward", "backward")
            )
            plan.before.setdefault(number, []).append(first)
            plan.after.setdefault(number, []).insert(0, last)
        return plan


class _Noted(Handle):
    def __init__(self, inner: Handle, events: Notes, number: int) -> None:
        self._inner, self._events, self._number = inner, events, number

    def wait(self, stream: Any = None) -> None:
        self._events.append(["wait", self._number])
        self._inner.wait(stream)


class _Link:
    """In the place of an MPI communicator."""

    def __init__(self, comm: Any, group: Noting) -> None:
        self._comm, self._group = comm, group
        self._ranks = comm.allgather(group.rank)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def Isend(self, buffer: Any, peer: int, tag: int) -> Any:
        self._note(0, peer, buffer)
        return self._comm.Isend(buffer, peer, tag)

    def Irecv(self, buffer: Any, peer: int, tag: int) -> Any:
        self._note(1, peer, buffer)
        return self._comm.Irecv(buffer, peer, tag)

    def _note(self, way: int, peer: int, buffer: Any) -> None:
        self._group.messages[-1][way].append([self._ranks[peer], buffer[0].nbytes])


def train(job: Any, topology: Any, comm: CommConfig, design: str) -> dict[str, Any]:
    """What a rank did in the second iteration, and the sizes."""
    param = caffe_pb2.SolverParameter(net_param=net_param(), base_lr=0, lr_policy="fixed")
    param.snapshot_after_train = False
    group = Noting(job, topology, comm, config_of(DESIGNS[design], BUCKET))
    solver = Solver(param, Cpu(threads=1), group=group)
    solver.step(2)
    sizes = sizes_of(solver.net)
    solver.close()
    (first, before), (last, behind) = group.begun[-2:]
    made = {"events": group.events[first:last], "messages": group.messages[before:behind]}
    return made | {"sizes": sizes}


def main() -> None:
    """Train and print."""
    job = find_job()
    with job.together():
        topology = discover(job)
        found = {
            design: job.gather(train(job, topology, comm, design)) for design, comm in CASES.items()
        }
        if job.rank == 0:
            print(json.dumps(found))


if __name__ == "__main__":
    main()
