"""Net: it builds the layers of a prototxt, records and places them, and runs the steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np

from .arena import Arena, Parameter
from .backends.backend import Backend, Prepared
from .backends.primitives.movement import Fill
from .backends.random import RandomState, new_seed
from .backends.tensor import Run, Shape, Tensor
from .blob import Blob
from .data.config import DataConfig
from .errors import UserError, listed, naming
from .graph.assembly import (
    Assembly,
    assemble,
    assemble_again,
    keep_memory,
    limit_labels,
    reuse_tensors,
    unused_tensors,
)
from .graph.build_cache import BuildCache, input_shapes, is_repeatable
from .graph.capture import as_one, run_at
from .graph.gradients import Node, find_gradients
from .graph.parameters import adopt_parameters
from .graph.passes import pipeline
from .graph.passes.constants import Constants
from .graph.passes.editing import Programs
from .graph.passes.memory import MemoryPlan, Pool
from .graph.prototxt.filter import filter_layers, net_state
from .graph.prototxt.forks import align_crops, warn_of_forks
from .graph.prototxt.precision import warn_of_precision
from .graph.prototxt.splits import insert_splits
from .graph.weights import (
    Match,
    check_memory,
    copy_weights,
    first_values,
    to_proto,
    write_constants,
)
from .layer import layer_type
from .layers.base import Context, Reshaped, Splitter
from .layers.reading.alignment import align
from .proto import AnyWeights, caffe_pb2

log = logging.getLogger("osucaffe")


class Net:
    """A net on a backend, built for one phase and fixed shapes.

    share: a net whose parameters (by layer name) and working memory this one uses.
    inspectable: every blob keeps its own row-major memory, so that all can be looked at.
    Backward is prepared, and its gradients get memory, when it first runs.
    on_demand (of an inspectable one): until it first runs, or `complete` is called, only its
    parameters, inputs and outputs have memory, and no call is prepared.
    gradients: whether backward can run (default: in the TRAIN phase, or when inspectable).
    accumulate: backward adds to the parameters' gradients, which are cleared ahead of it unless
    they are to be kept (for `iter_size`); it does so in an inspectable net, too.
    inference: it only runs forward, so that what the parameters make constant is computed once,
    and again after `load`, or after `refresh` where others change them; only the blobs of `wanted`,
    inputs and outputs can be read.
    loss_scale: a factor of all losses' weights, in the backend's memory, at each backward pass.
    data_config: how its layers read their data. splitter: divides layers among ranks.

    Bad layers raise UserError.
    """

    def __init__(
        self,
        param: caffe_pb2.NetParameter,
        *,
        backend: Backend,
        phase: str = "TRAIN",
        level: int = 0,
        stages: Iterable[str] = (),
        seed: int | None = None,
        share: Net | None = None,
        inspectable: bool = False,
        on_demand: bool = False,
        gradients: bool | None = None,
        accumulate: bool = False,
        inference: bool = False,
        wanted: Iterable[str] = (),
        loss_scale: Tensor | None = None,
        data_config: DataConfig = DataConfig(),
        splitter: Splitter | None = None,
    ) -> None:
        self.backend, self.splitter = backend, splitter
        self._inference, self._wanted = inference, list(wanted)
        self._shares = share is not None
        self._loss_scale = loss_scale
        self.phase = phase
        self.name: str = param.name
        self.inspectable = inspectable
        self.random = RandomState(new_seed() if seed is None else seed)
        if share is None:
            warn_of_precision(param)
        filtered = filter_layers(param, net_state(param, phase, level, stages))
        warn_of_forks(filtered, phase)
        self.param = insert_splits(align_crops(filtered))
        if inference:
            gradients = False
        if gradients is None:
            gradients = phase == "TRAIN" or inspectable
        types = {each.type: layer_type(each.type) for each in self.param.layer}
        if any((found := types[each.type]) and found.is_dynamic(each) for each in self.param.layer):
            self.inspectable = True
        self._on_demand = on_demand and self.inspectable
        self._gradients, self._accumulate = gradients, accumulate or inspectable
        self.constants: Constants | None = None
        seed = self.random.seed
        context = Context(backend, data_config, self.inspectable, splitter, loss_scale)
        self._begin_build(assemble(self.param, phase, seed, context))
        align([(n.layer, n.top[0].shape) for n in self.nodes if n.top and not n.bottom])
        self.layers = [node.layer for node in self.nodes]
        self.layer_names: list[str] = [layer.name for layer in self.layers]
        self.parameters: list[Parameter] = adopt_parameters(self.layers, share, self.blobs)
        self.pool: Pool = share.pool if share else Pool(backend)
        self._cache = BuildCache(self.layers, self.pool)
        if inference and not self.inspectable:
            self.constants = self._build.constants = Constants(
                blob.data for layer in self.layers for blob in layer.parameters
            )
        own = [p for p in self.parameters if p.blob.data.array is None]
        check_memory(own, backend, gradients=gradients)
        with ThreadPoolExecutor(1) as drawing:  # beside the preparation, which can take as long
            values = drawing.submit(first_values, self.layers, own, seed)
            self._compile()
        self.arena = Arena(backend, own[::-1], gradients=gradients and not self._on_demand)
        self._arenas: list[Arena] = [*(share._arenas if share else []), self.arena]
        self._place()
        for tensor, first in values.result():
            backend.write(tensor, first)
        for tensor, first in [pair for layer in self.layers for pair in layer.initial]:
            if tensor.array is not None:  # else it is a parameter of another net
                backend.write(tensor, first)

    def reshape(self, shapes: Mapping[str, Shape], reach: int | None = None) -> None:
        """Give blobs that layers without bottoms make other shapes, and infer the rest again.

        What stays: the parameters, where the data streams are, the random step, and the values of
        the blobs that keep both their memory and their shape. UserError where a layer cannot have
        these shapes: then the net stays as it was.
        reach: of an inspectable net, how many layers are to run: if others cannot have these
        shapes, these follow alone (see `reach` of the net).
        """
        if not self._go_back(shapes):
            self._build_again(shapes, reach)

    @property
    def reach(self) -> int:
        """How many layers have followed when inputs got other shapes: only these may run."""
        return len(self.nodes) if self._build.parts.reach is None else self._build.parts.reach

    # -- building --------------------------------------------------------------------------------

    def _build_again(self, shapes: Mapping[str, Shape], reach: int | None) -> None:
        """Be built for other shapes, if the layers can have them: all, or that many."""
        before = self._build
        self._cache.save_layers(before)
        alone = self.inspectable and not self.is_repeatable  # else whole builds are remembered
        whole = reach is None and before.parts.reach is None
        if alone and whole:
            self._cache.remember_layers(before)

        def assembled(reach: int | None) -> Assembly:
            known = self._cache if alone and whole else None
            try:
                return assemble_again(
                    before.parts, shapes, inspectable=self.inspectable, known=known, reach=reach
                )
            except UserError:
                self._cache.restore_layers(before)
                raise

        try:
            parts = assembled(None)
        except UserError:
            if reach is None:
                raise
            parts = assembled(reach)
        self._leave()
        self._begin_build(parts, again=True)
        self._compile()
        for layer, state in zip(self.layers, before.states, strict=True):
            reuse_tensors(layer, state["tensors"])
        if alone:
            self._cache.release(before, self._build)
        self._place()
        write_constants([node.layer for node in self.nodes if node.bottom], self.backend)

    def _begin_build(self, parts: Assembly, *, again: bool = False) -> None:
        """Begin to build the net for new shapes."""
        for name in [*self._wanted, *parts.outputs] if self._inference else ():
            if name not in parts.blobs:
                layers = [node.layer for node in parts.nodes if node.layer.type != "Split"]
                made = dict.fromkeys(top for layer in layers for top in layer.param.top)
                raise UserError(f'the net has no blob "{name}": it has {listed(made)}')
            parts.blobs[name].keep_exact()
        seeds = {blob.name: blob.diff for blob, _ in parts.losses}
        if self._loss_scale is not None:
            seeds = {name: Tensor(t.shape, persistent=True) for name, t in seeds.items()}
        build = pipeline.Build(
            parts,
            limit_labels(parts.nodes),
            self.backend,
            self.inspectable,
            Tensor((), name="total loss", persistent=True),
            self._gradients,
            self._accumulate,
            seeds,
            self._loss_scale,
            [parts.blobs[name] for name in parts.outputs if self.inspectable],
            again=again,
            constants=self.constants,
        )
        self._use(build)

    def _use(self, build: pipeline.Build) -> None:
        """Be what is built for some shapes."""
        self._build, parts = build, build.parts
        self.blobs: dict[str, Blob] = parts.blobs
        self.nodes: list[Node] = parts.nodes
        self.inputs, self.outputs = parts.inputs, parts.outputs
        self.labels, self.total, self.seeds = build.labels, build.total, build.seeds
        """seeds: the weight of each loss, by blob: what backward begins with, but for the scale."""

    def _compile(self) -> None:
        """Record every call, and prepare it unless that is done on demand."""
        if not self._build.again:
            find_gradients(self.nodes, force=self.param.force_backward)
        pipeline.run(pipeline.COMPILE, self._build)
        if not self._on_demand:
            self._prepare(0)

    def _prepare(self, number: int) -> None:
        """Prepare a program, or all, unless the net is inspectable."""
        self.backend.random = self.random
        self._build.next = [number] if self.inspectable else range(len(self.programs))
        pipeline.run(pipeline.PREPARE, self._build)

    def _place(self) -> None:
        """Place all tensors but the parameters; on demand, those that others may share."""
        if not self._on_demand:
            self._place_all()
            return
        blobs = [self.blobs[name] for name in (*self.inputs, *self.outputs)]
        self._give_memory(blob.data.owner for blob in blobs)
        self._give_memory(blob.length for blob in blobs if blob.length is not None)

    def _place_all(self) -> None:
        """Plan the memory of all tensors of what is prepared but the parameters, and place them."""
        build, begins = self._build, 0 in self._build.next
        seeds = [
            (self.seeds[blob.name], weight)
            for blob, weight in build.parts.losses
            if begins or self.seeds[blob.name].array is None
        ]
        pipeline.run(pipeline.PLACE, build)
        plan = build.plan
        assert plan is not None
        self.pool.add(plan)
        own = [*plan.persistent]
        if begins:
            own += [blob.diff for blob, _ in build.parts.losses if self._gradients]
            own += unused_tensors(build.parts, inspectable=self.inspectable)
            own += self._unused_gradients() if not self._on_demand else ()
        self._give_memory(own)
        if build.verifier is not None:
            build.verifier.check_memory()
        for seed, weight in seeds:
            if seed.array is not None:
                self.backend.write(seed, np.full(seed.shape, weight, np.float32))
        if begins and plan.unshared and not (build.again or (self._inference and self._shares)):
            log.info("Memory for blobs and scratch of the %s net: %s", self.phase, plan)

    def _give_memory(self, tensors: Iterable[Tensor]) -> None:
        """Let those that have none have memory of their own."""
        for tensor in tensors:
            if tensor.array is None:
                self.backend.allocate_zeros_for(tensor)

    def _unused_gradients(self) -> list[Tensor]:
        """Those of all blobs of an inspectable net: a user may set or read them."""
        return [blob.diff.owner for blob in self.blobs.values() if self.inspectable]

    @property
    def is_complete(self) -> bool:
        """Whether it can run: one that is built on demand is not, at first."""
        return self._build.plan is not None

    def complete(self) -> None:
        """Do what was left until it was needed: prepare the calls, and place the blobs."""
        for number in range(len(self.programs)):
            self.ready(number)
        self._give_memory(self._unused_gradients())

    def ready(self, number: int = 0) -> None:
        """The same as far as one of the `programs` needs it."""
        if number in self._build.by_layer:
            return
        initial = [pair for layer in self.layers for pair in layer.initial]
        missing = [(tensor, values) for tensor, values in initial if tensor.array is None]
        self._prepare(number)
        if self._gradients:
            self.arena.give_gradients(self.backend)
        self._place_all()
        for tensor, values in missing:
            self.backend.write(tensor, values)

    @property
    def programs(self) -> Programs:
        """The calls of forward, and those of backward."""
        return self._build.programs

    @property
    def written(self) -> Set[Tensor]:
        """The tensors to whose memory forward writes."""
        return self._build.written

    @property
    def memory(self) -> MemoryPlan:
        """Where the blobs lie, and scratch memory."""
        self.complete()
        assert self._build.plan is not None
        return self._build.plan

    @property
    def passes(self) -> list[pipeline.Report]:
        """What each pass of the compilation did."""
        return self._build.reports

    @property
    def verified(self) -> int:
        """How many reads of calls the verifier has checked after the passes, if it runs."""
        return self._build.verifier.checked if self._build.verifier is not None else 0

    # -- shapes that come again ------------------------------------------------------------------

    def input_of(self, name: str, shape: Shape) -> Tensor | None:
        """An input as it was when it had this shape, if that is remembered."""
        return self._cache.input_of(name, shape)

    def _go_back(self, shapes: Mapping[str, Shape]) -> bool:
        """Be as the net was when its inputs had these shapes, if that is remembered."""
        now = input_shapes(self._build)
        asked = now | {name: tuple(map(int, shape)) for name, shape in shapes.items()}
        if not self.is_repeatable or asked == now:
            return self.is_repeatable and self._build.parts.reach is None
        build = self._cache.take(asked)
        if build is None:
            return False
        before = self._build
        self._cache.save_layers(before)
        self._leave()
        self._use(build)
        if keep_memory(before.parts, build.parts):
            self.forget_replay()
        self._cache.restore_layers(build)
        return True

    def _leave(self) -> None:
        """Remember what is built, before the net becomes another, if that can be."""
        whole = self._build.parts.reach is None
        if whole and self.is_repeatable and (self.constants is not None or not self.is_complete):
            self._cache.add(self._build)
        else:
            self._cache.drop(self._build)

    @cached_property
    def is_repeatable(self) -> bool:
        """See `build_cache.is_repeatable`."""
        return is_repeatable(self._build)

    # -- running ---------------------------------------------------------------------------------

    def forward(
        self,
        start: int = 0,
        end: int | None = None,
        *,
        after: Callable[[int], None] | None = None,
    ) -> None:
        """Run the layers start..end (not included). after: called with each layer's index."""
        if self.constants is not None and (start, end, after) == (0, None, None):
            self._forward_as_one()
            return
        self.ready()
        self._begin()
        end = len(self.layers) + 1 if end is None else end
        index = start
        while index < end:
            try:
                for step in self._build.by_layer[0][index]:
                    step()
            except Reshaped:
                self._apply_reshape(index, end if end < len(self.layers) else None)
                self.ready()
                continue
            if after:
                after(index)
            index += 1

    def _forward_as_one(self) -> None:
        """Run all of forward, as the backend may replay it."""
        build = self._build
        if build.replay is None:
            build.replay = self.as_step(backward=False)
        build.replay()

    def forget_replay(self) -> None:
        """Blobs were placed elsewhere: what replays them is to be captured again."""
        self._build.moves += 1

    def discard(self) -> None:
        """Give back the room in the pool that it may share; it must not run any more."""
        self._cache.drop(self._build)
        self._cache.clear()

    def _apply_reshape(self, index: int, reach: int | None) -> None:
        """Take over the shapes that a layer has just given its tops; it runs again."""
        made = any(node.bottom for node in self.nodes[:index])
        if made and not self.inspectable:
            self.layers[index].fail(
                "top",
                "its shape changed while the net ran. After other layers this works in the Python "
                "interface only; a layer without bottoms may do it anywhere",
            )
        self.reshape({}, reach)

    def backward(
        self,
        start: int | None = None,
        end: int = 0,
        *,
        accumulate: bool = False,
        after: Callable[[int], None] | None = None,
    ) -> None:
        """Run backward from layer `start` (default: the last) down to `end`, both included.

        accumulate: add to the parameters' gradients that there are.
        after: called with each layer's index when its gradients are complete.
        """
        self.ready()
        self.ready(1)
        for _, clear in self._ahead_of_backward(accumulate):
            clear()
        start = len(self.layers) - 1 if start is None else start
        for index in range(start, end - 1, -1):
            for step in self._build.by_layer[1][index]:
                step()
            if after:
                after(index)

    def _ahead_of_backward(self, accumulate: bool) -> list[Prepared]:
        """What clears the gradients, if backward adds to them and they are not to be kept."""
        assert self._gradients, "this net was built without gradients"
        assert self._accumulate or not accumulate, "this net was built without accumulate"
        return self._clearing if self._accumulate and not accumulate else []

    @cached_property
    def _clearing(self) -> list[Prepared]:
        """What clears the gradients of all parameters, those that are another net's, too."""
        calls = [Fill(arena.diff, 0.0) for arena in self._arenas if arena.diff.size]
        for call in calls:
            call.position = len(self.layers) - 1  # which runs backward first
        return list(zip(calls, self.backend.prepare(calls), strict=True))

    def _begin(self) -> None:
        """Let the random numbers of another forward pass be drawn."""
        if self.constants is not None and self.constants.stale:
            self.constants.run(self.backend)
        self.random.step += 1
        self.backend.begin_forward(self.random)

    @property
    def replays(self) -> bool:
        """Whether its steps stay as they are: not if it may be reshaped, as inspectable nets may,
        and those with a layer that reshapes."""
        return not self.inspectable and not any(layer.reshapes for layer in self.layers)

    def as_step(
        self,
        *,
        backward: bool = True,
        accumulate: bool = False,
        before: Mapping[int, Run] = MappingProxyType({}),
        after: Mapping[int, Run] = MappingProxyType({}),
        concurrent: Iterable[Run] = (),
        last: Iterable[Run] = (),
        enqueues: bool = True,
    ) -> Run:
        """A step for all of forward (and backward, as in `backward`), and what is to follow.

        before: what to run ahead of the forward of some layers, by index. after: after the
        backward of some layers, when the gradients of these and all above are complete. concurrent:
        what may overlap backward, and `last` waits for. enqueues: all of it, and `last`, only
        enqueues work.

        The backend may replay it as one: as a CUDA graph, which the steps that bring input run
        before, and which a host function inside the net rules out. If `before` and `after` do more
        than to enqueue work, it may replay what lies between them. What it replays is captured
        again where the net got other memory or shapes: another net may have made their pool grow.
        """
        concurrent, last = list(concurrent), list(last)
        if not self.replays:

            def plain() -> None:
                run_at(before, 0)
                self.forward(after=lambda index: run_at(before, index + 1))
                for step in concurrent:
                    step()
                if backward:
                    self.backward(accumulate=accumulate, after=lambda index: run_at(after, index))
                for step in last:
                    step()

            return plain
        prepared, moves = self._build.steps, -1
        captured: Run

        def step() -> None:
            nonlocal prepared, moves, captured
            build = self._build
            if moves != (now := build.moves + self.backend.moves) or prepared is not build.steps:
                prepared, moves = build.steps, now
                calls = [*self._ahead_of_backward(accumulate), *prepared[1]] if backward else []
                captured = as_one(
                    self.backend,
                    self._begin,
                    prepared[0],
                    calls,
                    len(self.layers),
                    before=before,
                    after=after,
                    concurrent=concurrent,
                    last=last,
                    enqueues=enqueues,
                )
            captured()

        return step

    def loss(self) -> float:
        """The weighted sum of the losses of the last forward pass."""
        return float(self.backend.read(self.total)) if self._build.parts.losses else 0.0

    def loss_weight(self, name: str) -> float:
        """The weight of an output in the loss (0: it is not a loss)."""
        return next((weight for blob, weight in self._build.parts.losses if blob.name == name), 0.0)

    def read(self, name: str) -> np.ndarray:
        """A row-major copy of a blob's data; of those rows that there are, if that varies."""
        blob = self.blobs[name]
        if blob.data.array is None:
            raise UserError(f'blob "{name}" is not computed: inspectable=True has all computed')
        values: np.ndarray = self.backend.read(blob.data)
        if blob.length is not None:
            values = values[..., : int(self.backend.read(blob.length).item()), :]
        return values

    def write(self, name: str, values: np.ndarray) -> None:
        """Set the data of a blob, such as an input."""
        blob, values = self.blobs[name], np.asarray(values)
        if values.shape != blob.shape:
            raise UserError(f'blob "{name}" has shape {blob.shape}, not {values.shape}')
        if self.labels.get(name):
            self.labels[name].check_all(values, f'blob "{name}"')
        self.backend.write(blob.data, values)

    # -- weights ---------------------------------------------------------------------------------

    def load(self, weights: AnyWeights, file: str | Path = "") -> Match:
        """Copy the weights of the layers that have the same names; returns which have (see
        `load_weights` in loading.py for who wants to be told). Other shapes: UserError, which
        names the file that they were read from, if it is given."""
        with naming(file):
            match = copy_weights(weights, self.layers, self.backend)
        self.refresh()
        return match

    def refresh(self) -> None:
        """The parameters have changed: let the next forward pass compute again what they alone
        determine."""
        if self.constants is not None:
            self.constants.stale = True

    def to_proto(self, *, diff: bool = False) -> caffe_pb2.NetParameter:
        """The net and its weights (diff: and their gradients), as a .caffemodel holds them."""
        return to_proto(self.param, self.layers, self.backend, diff=diff)
