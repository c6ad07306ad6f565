"""The profile of training with parameter servers: what a worker pushes is an operation of a
bucket, whose messages are its pieces' gradients (push) and weights (pull)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...comm.channels.channel import Pending
from ...comm.config import CommConfig
from ...comm.job.topology import Topology
from ...parallel.buckets import ITEM
from ...parallel.config import ParallelConfig
from ..servers.training import Roles, ServerDataParallel
from ..servers.worker import ServerClient
from .passes import PUSH, Profiled, Records
from .recorder import Clock, Message, Posted, Recorder, address


class ProfiledServerClient(ServerClient):
    """One that notes what travels, and what is waited for, with a recorder.

    channel: the name of what carries it; levels: of the links to the servers.
    """

    def __init__(
        self, recorder: Recorder, channel: str, levels: Sequence[str], *exchanged: Any, **more: Any
    ) -> None:
        """exchanged, more: as of a ServerClient."""
        self._recorder, self._carrier, self._levels = recorder, channel, levels
        self._now: dict[int, Posted] = {}
        """By bucket what is under way, or was last, and is recorded."""
        self._sent: dict[int, float] = {}
        super().__init__(*exchanged, **more)
        self._base = address(self._gradients.host)

    def push(self, bucket: int, rate: float, stream: Any = None) -> None:
        self._now.pop(bucket, None)
        if self._recorder.recording:
            pieces = [piece for piece in self._pieces if piece.bucket == bucket]
            start, stop = pieces[0].start, pieces[-1].stop
            place = self._base + start * ITEM
            operation = Posted(PUSH, (stop - start) * ITEM, place, self._recorder.clock.mark())
            self._now[bucket] = operation
            self._recorder.operations.append(operation)
        super().push(bucket, rate, stream)

    def wait(self, bucket: int, stream: Any = None) -> bool:
        begun = self._recorder.clock.mark()
        new = super().wait(bucket, stream)
        if new and bucket in self._now:
            self._now[bucket].waits.append((begun, self._recorder.clock.mark()))
        return new

    def _begin(self, pending: Pending, bucket: int, rate: float) -> None:
        if bucket in self._now:
            self._now[bucket].begun = self._recorder.clock.mark()
        super()._begin(pending, bucket, rate)

    def _pushed(self, tag: int) -> None:
        self._sent[tag] = self._recorder.clock.mark()

    def _arrived(self, bucket: int, tag: int) -> None:
        if operation := self._now.get(bucket):
            ended = operation.ended = self._recorder.clock.mark()
            piece = self._pieces[tag]
            nbytes = ITEM * (piece.stop - piece.start)
            where = self._carrier, self._levels[piece.server], nbytes
            # Where one look finds both, the gradients are taken to have left only now.
            sent = max(self._sent.pop(tag, ended), operation.begun)
            operation.messages += [
                Message("push", *where, operation.begun, sent),
                Message("pull", *where, sent, ended),
            ]
        super()._arrived(bucket, tag)


class ProfiledServed(Profiled, ServerDataParallel):
    """The ranks that train, of a job with servers; at the end the first hands all records to
    `report`."""

    def __init__(
        self,
        report: Callable[[list[Records]], None],
        channel: str,
        roles: Roles,
        topology: Topology,
        comm_config: CommConfig,
        config: ParallelConfig,
    ) -> None:
        """channel: its name. topology: of all ranks, those that serve, too."""
        super().__init__(report, roles, topology, comm_config, config)
        hosts = [topology.ranks[server].host for server in roles.servers]
        levels = ["node" if host == topology.local.host else "network" for host in hosts]
        self._make_pushing = partial(ProfiledServerClient, self._profile, channel, levels)

    def _make_profile(self) -> Recorder:
        return Recorder(Clock())
