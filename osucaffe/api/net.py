"""`oc.Net`: a net with its weights, called with arrays."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from .. import net as engine
from ..errors import UserError, listed, naming
from ..files import write_bytes
from ..graph.prototxt.filter import filter_layers, net_state
from ..loading import Model, load_weights
from ..proto import NetParameter, parse_text, read_net, read_weights, upgrade_net, write_weights
from . import devices, summary
from .blobs import Blob, Layer, Named, Parameters

Description = Any
"""Of a net: a file's path, its text, a NetParameter, or what has `to_proto`, as a NetSpec."""


class Net:
    """A net: `net(data=x)` runs it forward and returns its outputs by name.

    net: a prototxt's path or text, a NetParameter or a NetSpec. weights: paths of models
    (.caffemodel or .h5), or a net to copy them from. gpu: its number, or None for the CPU.
    precision: "fp32", "tf32", "bf16" or "fp16", on a GPU. threads: of the CPU. phase: "TEST" or
    "TRAIN". UserError for what is wrong with any of them.

    A net may be called by several threads: they take turns, and each gets its own results.
    """

    def __init__(
        self,
        net: Description,
        weights: Any = (),
        *,
        gpu: int | None = None,
        precision: str | None = None,
        threads: int | None = None,
        phase: str = "TEST",
    ) -> None:
        if phase not in ("TEST", "TRAIN"):
            raise UserError(f'phase={phase!r}: it is "TEST" or "TRAIN"')
        param = read_description(net)
        layers = filter_layers(param, net_state(param, phase)).layer
        only_inputs = all(each.bottom or each.type == "Input" for each in layers)
        backend = devices.backend(gpu, precision, threads)
        self._wanted: set[str] = set()
        with naming(net) if is_path(net) else nullcontext():
            made = self._build(param, backend, phase, fast=phase == "TEST" and only_inputs)
            if made.constants is not None and not _can_rerun(made):
                made = self._build(param, backend, phase, fast=False)
        self._begin(made, param)
        for each in _as_list(weights):
            self.load(each)

    @classmethod
    def of(cls, net: engine.Net) -> Net:
        """A net of the engine's."""
        self = cls.__new__(cls)
        self._begin(net, net.param)
        return self

    def _build(
        self, param: NetParameter, backend: Any, phase: str, *, fast: bool, **share: Any
    ) -> engine.Net:
        """fast: runs forward only, without blobs that nobody asked for; else all are there."""
        how = {"inference": True, "wanted": sorted(self._wanted)} if fast else {"inspectable": True}
        return engine.Net(param, backend=backend, phase=phase, **how, **share)

    def _begin(self, net: engine.Net, param: NetParameter) -> None:
        self.engine, self.param = net, param
        self._lock, self._on_host = threading.RLock(), net.backend.xp is np
        plain = [node.layer for node in net.nodes if node.layer.type != "Split"]
        names = dict.fromkeys(top for layer in plain for top in layer.param.top)
        trained = {layer.label: layer for layer in plain if layer.parameters}
        self.blobs: Named[Blob] = Named("blob", [*names], lambda name: Blob(self, name))
        self.params: Named[Parameters] = Named(
            "layer with parameters", [*trained], lambda name: Parameters(self, trained[name])
        )
        self.name, self.inputs, self.outputs = net.name, [*net.inputs], [*net.outputs]

    # -- running ---------------------------------------------------------------------------------

    def __call__(self, *unnamed: Any, **inputs: Any) -> dict[str, Any]:
        """Run forward, with arrays for inputs; those that are not given stay as they are.

        The net takes their shapes: of another batch size, or of other images. Returns copies of the
        outputs: NumPy's, or of the library of the first input (CuPy, PyTorch: where it lies).
        """
        if unnamed:
            raise UserError(f"give arrays by the names of the inputs: {listed(self.inputs)}")
        foreign = None
        for name, values in inputs.items():
            if type(values) is not np.ndarray or values.dtype.kind not in "fiub":
                foreign = values if foreign is None and devices.is_foreign(values) else foreign
                inputs[name] = devices.numbers(values, self.engine.backend.xp, name)
        with self.running():
            self._put(inputs)
            net = self.engine
            net.forward()
            if foreign is None:
                return {name: net.read(name) for name in self.outputs}
            make = devices.library_of(foreign)
            on_host = all(type(values) is np.ndarray for values in inputs.values())
            return {
                name: make(net.read(name) if on_host else net.blobs[name].data.array.copy())
                for name in self.outputs
            }

    def _put(self, given: dict[str, Any]) -> None:
        net, shapes = self.engine, {}
        for name, values in given.items():
            if name not in self.inputs:
                has = listed(net.inputs) or "none"
                raise UserError(f'"{name}" is not an input of the net; it has {has}')
            if values.shape != (shape := net.blobs[name].shape):
                if len(values.shape) != len(shape):
                    raise UserError(
                        f'input "{name}" has {len(shape)} axes, such as {shape}, not the shape '
                        f"{values.shape}: the first is the batch (x[None] is a batch of one)"
                    )
                shapes[name] = values.shape
        if shapes:
            self._reshape(shapes)
        for name, values in given.items():
            if type(values) is np.ndarray:
                net.write(name, values)
            else:
                net.blobs[name].data.array[...] = values

    def _reshape(self, shapes: dict[str, tuple[int, ...]]) -> None:
        try:
            self.engine.reshape(shapes)
        except UserError as error:
            said = ", ".join(f'input "{name}" of {shape}' for name, shape in shapes.items())
            for name, shape in shapes.items():
                channels = self.engine.blobs[name].shape[1:2]
                if shape[-1:] == channels != shape[1:2]:
                    said += ", whose channels should be axis 1 (np.moveaxis(x, -1, 1))"
            raise UserError(f"{said}: {error}") from None

    def running(self) -> AbstractContextManager[Any]:
        """What lets this thread alone use the net, and its device."""
        return self._lock if self._on_host else self._on_device()

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        with self._lock, devices.computing(self.engine.backend):
            yield

    def compute(self, name: str) -> None:
        """Have a blob of the last pass, which a net that only runs forward may do without: from
        then on each pass computes it."""
        old = self.engine
        if old.constants is None or name in (*old.inputs, *old.outputs, *self._wanted):
            return
        self._wanted.add(name)
        net = self._build(self.param, old.backend, old.phase, fast=True, share=old)
        net.reshape({name: old.blobs[name].shape for name in old.inputs})
        for each in old.inputs:
            net.write(each, old.read(each))
        old.discard()
        net.forward()
        self.engine = net

    # -- weights ---------------------------------------------------------------------------------

    def load(self, weights: Any) -> str:
        """Copy weights by the names of layers, from a file or another net. Returns what did not
        match ("" if all did); UserError if nothing does."""
        with self.running():
            if isinstance(weights, Net):
                with weights.running():
                    model: Model = f'net "{weights.name}"', weights.engine.to_proto()
            else:
                model = weights, read_weights(weights)
            return load_weights([self.engine], [model])

    def save(self, path: str | Path) -> None:
        """Write the net and its weights: a .caffemodel, or by the suffix .h5 as HDF5."""
        with self.running():
            write_weights(path, self.engine.to_proto(), hdf5=Path(path).suffix in (".h5", ".hdf5"))

    def __reduce__(self) -> Any:
        """A copy, or what is pickled, has the weights and is for the same device; not the last
        call's blobs."""
        with self.running():
            backend: Any = self.engine.backend
            where = (
                {"threads": backend.threads}
                if self._on_host
                else {"gpu": backend.device.id, "precision": backend.precision}
            )
            return _again, (self.param, self.engine.to_proto(), self.engine.phase, where)

    # -- looking at it ---------------------------------------------------------------------------

    @property
    def layers(self) -> list[Layer]:
        """All layers, in their order."""
        nodes = self.engine.nodes
        return [Layer(self, at) for at, node in enumerate(nodes) if node.layer.type != "Split"]

    def draw(self, direction: str = "LR") -> Drawing:
        """A picture of the net, which a notebook shows. direction: LR, TB, RL or BT. UserError
        without pydot and Graphviz's dot."""
        from ..pycaffe import draw

        phase = ("TRAIN", "TEST").index(self.engine.phase)
        return Drawing(draw.render(draw.get_pydot_graph(self.param, direction, phase=phase), "svg"))

    def summary(self) -> None:
        """Print the layers, the sizes of what they make, their parameters and operations."""
        print(self)

    def __repr__(self) -> str:
        return summary.text(self.engine)

    def _repr_html_(self) -> str:
        return summary.html(self.engine)


class Drawing:
    """A picture, as SVG."""

    def __init__(self, svg: bytes) -> None:
        self._svg = svg

    def _repr_svg_(self) -> str:
        return self._svg.decode()

    def save(self, path: str | Path) -> None:
        """Write it to a .svg file."""
        write_bytes(path, self._svg)


def _again(param: NetParameter, weights: NetParameter, phase: str, where: dict[str, Any]) -> Net:
    net = Net(param, phase=phase, **where)
    load_weights([net.engine], [("the copy", weights)])
    return net


def read_description(net: Description) -> NetParameter:
    """The message of a net that is described in one of the ways that there are. UserError."""
    if is_path(net):
        return read_net(net)
    if isinstance(net, str):
        return upgrade_net(parse_text(net, NetParameter, "the net's text"))
    if hasattr(net, "to_proto"):
        net = net.to_proto()
    if not hasattr(net, "layer"):
        raise UserError(
            f"{type(net).__name__}: not a net: give a prototxt's path or text, a NetParameter or a "
            "NetSpec"
        )
    copy = NetParameter()
    copy.CopyFrom(net)
    return upgrade_net(copy)


def is_path(given: Any) -> bool:
    """Whether it is a file's name, not the text of a message."""
    if isinstance(given, str):
        return not any(mark in given for mark in ("{", "\n", ": "))
    return isinstance(given, Path)


def _as_list(given: Any) -> Sequence[Any]:
    return list(given) if isinstance(given, list | tuple) else [] if given is None else [given]


def _can_rerun(net: engine.Net) -> bool:
    """Whether a pass leaves its inputs as they are, and another one comes to the same."""
    written = any(net.blobs[name].data.owner in net.written for name in net.inputs)
    return net.is_repeatable and not written
