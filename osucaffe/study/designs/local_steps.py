"""Local steps: each rank trains alone, and only now and then the ranks' weights are averaged.

Local SGD (Stich, ICLR 2019), post-local SGD (Lin et al., ICLR 2020), and the outer step of DiLoCo
(Douillard et al., 2023). From the last weights w that all ranks had, each comes to its own, w_r.
Their outer gradient is D = w - mean(w_r); the outer step is SGD with Nesterov's momentum,

    v = outer_momentum v + D;  w = w - outer_lr (D + outer_momentum v)

which with outer_lr 1 and no momentum gives the mean of the weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...arena import Buffer
from ...backends.primitives import Program
from ...backends.tensor import Run, Tensor
from ...comm.algorithms import Operation
from ...comm.communicator import Communicator
from ...parallel.buckets import Layout, NetLayout
from ...parallel.config import ParallelConfig
from ...parallel.exchange import Exchange, begin_sum
from ...parallel.hook import GradientHook
from ...parallel.plan import Group, LocalPlan, Send
from ...solvers.update.optimizer import Optimizer

logger = logging.getLogger("osucaffe")


class LocalSteps(Exchange):
    """Nothing travels during most iterations; after some the weights are averaged.

    That is after each `local_steps`-th (before iteration `local_after`: after each), and wherever
    all ranks must have the same weights. Histories stay local: where a snapshot
    needs one, all ranks go on with their mean. iteration: tells the one that is under way.
    """

    plan: LocalPlan
    enqueues = True

    def __init__(
        self,
        comm: Communicator,
        net: NetLayout,
        optimizer: Optimizer,
        config: ParallelConfig,
        iteration: Callable[[], int],
        hook: GradientHook | None = None,
    ) -> None:
        super().__init__(net, optimizer, self.plan_of(net, config, comm))
        self._comm, self._iteration, self._hook = comm, iteration, hook
        arena = net.arena
        self._anchor = Buffer(arena, net.backend, "common_weights", net.parameters).flat
        velocity = []
        if config.outer_momentum:
            velocity = [Buffer(arena, net.backend, "outer_momentum", net.parameters)]
        self.buffers = [*velocity, *(hook.buffers if hook else ())]
        self._gradients = arena.diff.array[: arena.learned]
        self._histories = [flat.array[: arena.learned] for flat in optimizer.flats]
        self._differ = self._histories_differ = False
        scalars = Tensor((3,), name="outer_scalars", persistent=True)
        net.backend.allocate_for(scalars)
        net.backend.write(scalars, [comm.size, config.outer_lr, config.outer_momentum])

        def formula(text: str, weights: Tensor, gradients: Tensor, *history: Tensor) -> Run:
            program = Program()
            program.update(
                weights,
                gradients,
                [*history],
                scalars,
                formula=text,
                names=("ranks", "outer_lr", "outer_momentum"),
                segments=[(0, arena.learned, 1.0, 1.0)] if arena.learned else [],
                constants={},
            )
            [step] = net.backend.prepare(program.calls)
            return step if arena.learned else lambda: None

        data, diff, anchor = arena.data, arena.diff, self._anchor
        self._keep = formula("w = g", anchor, data)
        self._difference = formula("w = (h - g) / ranks", diff, data, anchor)
        outer_step = "h = h - outer_lr * g; w = h"
        if velocity:
            outer_step = f"h2 = outer_momentum * h2 + g; g = g + outer_momentum * h2; {outer_step}"
        flats = [buffer.flat for buffer in velocity]
        self._outer_step = formula(outer_step, data, diff, anchor, *flats)
        self._means = [formula("w = w / ranks", flat, flat) for flat in optimizer.flats]

    @classmethod
    def plan_of(cls, net: Layout, config: ParallelConfig, group: Group, **given: bool) -> LocalPlan:
        return LocalPlan(net, config)

    def exchange(self) -> None:
        """Each rank updates from its own gradients."""

    def agreed(self) -> None:
        self._keep()

    def updated(self) -> None:
        self._differ = self._histories_differ = True
        if self.plan.average.due(self._iteration() + 1):
            self._average()

    def synchronize(self, *, history: bool) -> None:
        """Average early where some ranks' weights have changed since the last time."""
        self._average()
        if history and self._hook:
            self._hook.settle()
        if history and self._histories_differ:
            for array, mean in zip(self._histories, self._means, strict=True):
                stream = self._backend.current
                self._comm.all_reduce(array, stream).wait(stream)
                mean()
            self._histories_differ = False

    def _average(self) -> None:
        if self._differ:
            self._difference()
            stream = self._backend.current
            every = Send(0, Operation.ALL_REDUCE, 0, len(self._gradients))
            begin_sum(self._comm, self._hook, every, self._gradients, stream).wait(stream)
            self._outer_step()
            self._differ = False
