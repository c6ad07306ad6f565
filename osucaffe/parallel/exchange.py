"""The exchange of gradients and weights: how plans (`plan.py`) are carried out.

Layer by layer, as S-Caffe does it (Awan et al., PPoPP 2017): gradients are sent as soon as backward
has completed them (SC-OBR); weights arrive just before the layer that needs them (SC-OB).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from .. import plugins
from ..arena import Buffer
from ..backends.tensor import Run, Tensor, sequence
from ..comm.communicator import Communicator, Handle
from ..comm.gpu.on_stream import OnStream
from ..errors import UserError
from .buckets import Bucket, Layout, NetLayout
from .config import ParallelConfig
from .hook import GradientHook
from .plan import (
    Beside,
    CollectivePlan,
    Event,
    Events,
    Group,
    Join,
    Note,
    Plan,
    Send,
    Take,
    Update,
    UpdateAll,
    Wait,
)

Hooks = dict[int, Run]
"""By layer, what to run before its forward, or after its backward."""


class Optimizer(Protocol):
    """What an exchange needs of one (see `solvers.update.optimizer`)."""

    steps: list[Run]

    @property
    def separable(self) -> bool: ...
    @property
    def rate(self) -> float: ...
    @property
    def flats(self) -> Sequence[Tensor]: ...
    def part(self, start: int, stop: int) -> Run: ...


class Exchange(ABC):
    """How the gradients of all ranks become the weights of all ranks, during the passes of one net:
    carries out the events of a plan."""

    enqueues = False
    """Whether a stream waits for operations, rather than the host."""
    missing = 0
    """How many ranks' gradients are not in a sum."""
    buffers: Sequence[Buffer] = ()
    """What it keeps for each parameter: part of a snapshot, as rank 0 has it after `synchronize`
    with history. What is called "residual" is a rank's share of a sum."""

    def __init__(self, net: NetLayout, optimizer: Optimizer, plan: Plan) -> None:
        self.plan = plan
        self._backend, self._optimizer = net.backend, optimizer

    @classmethod
    def plan_of(
        cls,
        net: Layout,
        config: ParallelConfig,
        group: Group,
        *,
        separable: bool,
        enqueues: bool = False,
        takes: bool = False,
    ) -> Plan:
        """The plan of a rank: `osucaffe predict` asks, too. For the rest see `CollectivePlan`."""
        raise UserError(f"{cls.__name__} does not tell its plan: it has no `plan_of`")

    def bind(self, events: Events) -> Hooks:
        """What runs for the events of each layer."""
        return {
            layer: sequence([self.carry_out(event) for event in each])
            for layer, each in events.items()
        }

    def carry_out(self, event: Event) -> Run:
        """What runs for an event."""
        match event:
            case UpdateAll():
                return sequence(self._optimizer.steps)
            case Update(start, stop):
                return self._optimizer.part(start, stop)
            case Note(call):
                return call
        raise TypeError(f"{type(self).__name__} has no {event}")

    def skips(self, *, accumulate: bool, update: bool) -> bool:
        """Whether this rank leaves out a pass."""
        return False

    @abstractmethod
    def exchange(self) -> None:
        """Without the `then` of a plan: return when this rank has the sums that it updates with, or
        (where others make the updates) the new weights."""

    def agreed(self) -> None:  # noqa: B027 (most need not know)
        """All ranks have been given the same weights and history."""

    @abstractmethod
    def updated(self) -> None:
        """An update was made, on the ranks that make one: what comes afterwards."""

    @abstractmethod
    def synchronize(self, *, history: bool) -> None:
        """Bring all ranks to the weights of the last update; history: and to its history."""


class Collectives(Exchange):
    """By collective operations, as configured by a `ParallelConfig`: see `CollectivePlan`.

    Where forward reads 16-bit copies, only these are sent in each iteration (and parameters that it
    reads themselves, such as biases, become what their copies are), and the weights when
    `synchronize` is called.
    """

    plan: CollectivePlan

    def __init__(
        self,
        comm: Communicator,
        net: NetLayout,
        optimizer: Optimizer,
        config: ParallelConfig,
        iteration: Callable[[], int],
        hook: GradientHook | None = None,
    ) -> None:
        """iteration: tells the one that is under way. hook: sums the gradients (with propagation
        "none"), on the communicator's thread."""
        self.enqueues = isinstance(comm, OnStream)
        plan = self.plan_of(
            net, config, comm, separable=optimizer.separable, enqueues=self.enqueues,
            takes=hook is not None and hook.takes,
        )  # fmt: skip
        super().__init__(net, optimizer, plan)
        self._comm, self._net, self._hook = comm, net, hook
        self.buffers = hook.buffers if hook else ()
        self._gradients = net.arena.diff.array
        self._weights = net.arena.data
        self._copies = net.backend.low_precision_arena(net.arena.data)
        self._under_way: dict[int, Handle] = {}
        self._renewals = {send.number: self._renewal(send) for send in plan.weights}
        """Of each bucket what goes before the sending of its copies, and after it."""
        self._some_differ = config.propagation != "none" or net.arena.is_split
        self._weights_differ = self._history_differs = False

    @classmethod
    def plan_of(
        cls, net: Layout, config: ParallelConfig, group: Group, **given: bool
    ) -> CollectivePlan:
        return CollectivePlan(net, config, group, **given)

    def _renewal(self, send: Send) -> tuple[Run, Run]:
        """Steps by which the parameters of a bucket that forward reads in 32 bits travel with the
        16-bit copies of the others: those that this rank updates become copies, and copies become
        those of other ranks."""
        start, stop, arena = send.start, send.stop, self._net.arena
        first, last = self.plan.own(self._comm, send)

        def renew(*ranges: tuple[int, int], copies: bool) -> Run:
            parts = [
                (parameter.blob.data, max(begin, first), min(end, last))
                for begin, end, parameter in arena.segments
                for first, last in ranges
                if begin < arena.learned and max(begin, first) < min(end, last)
            ]
            return self._backend.renew_exact(self._weights, parts, copies=copies)

        return renew((first, last), copies=True), renew((start, first), (last, stop), copies=False)

    def carry_out(self, event: Event) -> Run:
        match event:
            case Send():
                return partial(self._send_weights if event.weights else self._send, event)
            case Wait(number):
                return partial(self._wait, number)
            case Beside(events):
                steps = sequence([self.carry_out(each) for each in events])
                return self._backend.low_priority(steps)
            case Join():
                return self._backend.join_low_priority
            case Take():
                return self._take
        return super().carry_out(event)

    def exchange(self) -> None:
        for send in self.plan.gradients:
            if send.number not in self._under_way:
                self._send(send)
        for send in self.plan.gradients:
            self._wait(send.number)

    def updated(self) -> None:
        self._weights_differ = self._history_differs = self._some_differ

    def synchronize(self, *, history: bool) -> None:
        """Each rank's up-to-date parts of the history are those of the weights."""
        if self._weights_differ:
            for tensor in (self._copies, self._weights):
                if tensor is not None:
                    self._share(tensor)
            self._weights_differ = False
        if history and self._hook:
            self._hook.settle()
        if history and self._history_differs:
            for tensor in self._optimizer.flats:
                self._share(tensor)
            self._history_differs = False

    def _send(self, send: Send) -> None:
        """Begin to sum gradients."""
        start, stop = send.start, send.stop
        self._under_way[send.number] = begin_sum(
            self._comm, self._hook, send, self._gradients[start:stop], self._backend.current
        )

    def _send_weights(self, send: Send) -> None:
        """Begin to send what forward reads."""
        before, _ = self._renewals[send.number]
        before()
        self._under_way[send.number] = self._begin(send, self._copies or self._weights)

    def _wait(self, number: int) -> None:
        self._under_way.pop(number).wait(self._backend.current)
        if number in self._renewals:
            self._renewals[number][1]()

    def _share(self, tensor: Tensor) -> None:
        """Send another tensor that is laid out as the weights are."""
        handles = [self._begin(send, tensor) for send in self.plan.weights]
        for handle in handles:
            handle.wait(self._backend.current)

    def _begin(self, send: Send, tensor: Tensor) -> Handle:
        array = tensor.array[send.start : send.stop]
        return self._comm.collective(send.operation, array, stream=self._backend.current)

    def _take(self) -> None:
        assert self._hook is not None
        taken = self._gradients[: self._net.arena.learned]
        stream = self._backend.current
        self._comm.start(partial(self._hook.take, taken), stream).wait(stream)


def choose_exchange(config: ParallelConfig) -> type[Exchange]:
    """What carries out a configuration: called as `Collectives` is. UserError."""
    if config.local_steps:
        made: type[Exchange] = plugins.need(plugins.DESIGNS, "local_steps")
        return made
    if not config.brought:
        return Collectives
    made = plugins.need(plugins.AGGREGATIONS, config.aggregation)
    return made


def begin_sum(
    comm: Communicator, hook: GradientHook | None, send: Send, gradients: object, stream: object
) -> Handle:
    """Begin to sum the gradients of a bucket, of all ranks, which the stream makes."""
    if hook is None:
        return comm.collective(send.operation, gradients, stream=stream)
    work = partial(hook.reduce, Bucket(send.start, send.stop, 0), gradients)
    return comm.sum_by(work, gradients, stream)
