"""Owns Net as scripts know it: blobs and parameters as arrays, forward and backward by names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from .. import net as engine
from ..blob import Blob as EngineBlob
from ..errors import UserError, listed
from ..graph.parameters import same_layers
from ..layers.core.python import Python
from ..layers.reading.memory import MemoryData
from ..loading import load_weights
from ..proto import AnyWeights, NetWeights, read_net, read_weights, write_weights
from . import settings
from .blob import Blob, BlobVec, Store, store_of
from .forward_only import ForwardOnly

Arrays = dict[str, np.ndarray]
Callback = Callable[[int], None]
PHASES = ("TRAIN", "TEST")


class CaffeError(UserError, RuntimeError):
    """Raised where pycaffe raises RuntimeError, which scripts catch."""


class Layer:
    """What a script sees of a layer: `type` and `blobs`. A Python layer is its own object."""

    def __init__(self, type: str, blobs: BlobVec) -> None:
        self.type = type
        self.blobs = blobs


class Net:
    """A net with its parameters, to run layer by layer.

    Net(file, phase, level=0, stages=(), weights=None), or as of old Net(file, weights, phase).
    phase: 0 (TRAIN) or 1 (TEST). Missing files raise RuntimeError, bad nets UserError.
    """

    def __init__(
        self,
        network_file: str | Path,
        phase: Any,
        level: Any = 0,
        stages: Iterable[str] | None = None,
        weights: str | Path | None = None,
    ) -> None:
        if isinstance(phase, str | Path):
            weights, phase, level = phase, level, 0
        if phase not in (0, 1):
            raise CaffeError(f"phase {phase!r} is neither caffe.TRAIN (0) nor caffe.TEST (1)")
        check_readable(network_file)
        given = None if weights is None else (_read_model(weights), weights)
        param, state = read_net(network_file), {"level": level, "stages": list(stages or ())}
        net = engine.Net(
            param,
            backend=settings.backend(),
            phase=PHASES[phase],
            seed=settings.next_seed(),
            inspectable=True,
            gradients=True,
            **state,
        )
        self._begin(net)
        if ForwardOnly.serves(net):

            def make_fast(wanted: Iterable[str]) -> engine.Net:
                options: Any = {"share": net, "inference": True, "wanted": wanted, **state}
                return engine.Net(param, backend=net.backend, phase=net.phase, **options)

            self._forward_only = ForwardOnly(net, self._store, make_fast)
        if given is not None:
            self._load(*given)

    @classmethod
    def of(cls, net: engine.Net) -> Net:
        """An engine's net (an inspectable one) as scripts know it."""
        self = cls.__new__(cls)
        self._begin(net)
        return self

    _forward_only: ForwardOnly | None = None
    """What runs forward faster, where that depends on inputs and parameters alone."""
    mismatch = ""
    """Layers that the file of weights lacked, and those of it that this net does not have."""

    def _begin(self, net: engine.Net) -> None:
        self._store: Store = store_of(net.backend)
        self._before_forward: list[Callback] = []
        self._after_forward: list[Callback] = []
        self._before_backward: list[Callback] = []
        self._after_backward: list[Callback] = []
        self.use(net)

    def use(self, net: engine.Net) -> None:
        """Let this be the net of the engine."""
        self._net = net
        self.name: str = net.name
        self._layer_names: list[str] = net.layer_names
        self.inputs: list[str] = net.inputs
        self.outputs: list[str] = net.outputs
        self.blobs: OrderedDict[str, Blob] = OrderedDict(
            (name, self._blob(name)) for name in net.blobs
        )
        self.layers: list[Any] = [self._layer(index) for index in range(len(net.layers))]
        self._scripted = [layer for layer in net.layers if isinstance(layer, Python)]
        self.layer_dict: OrderedDict[str, Any] = OrderedDict(
            zip(net.layer_names, self.layers, strict=True)
        )
        self.params: OrderedDict[str, BlobVec] = OrderedDict(
            (name, layer.blobs)
            for name, layer in zip(net.layer_names, self.layers, strict=True)
            if layer.blobs
        )
        nodes = list(zip(net.layer_names, net.nodes, strict=True))
        self.bottom_names = OrderedDict((k, [blob.name for blob in n.bottom]) for k, n in nodes)
        self.top_names = OrderedDict((k, list(n.layer.param.top)) for k, n in nodes)
        self.blob_loss_weights = OrderedDict((name, net.loss_weight(name)) for name in net.blobs)
        self._follow()

    def _blob(self, name: str) -> Blob:
        def look() -> None:
            if self._forward_only is not None and not self._forward_only.has(name):
                self._catch_up()
                self._forward_only.want([name])

        return Blob(lambda: self._net.blobs[name], self._store, look)

    def _catch_up(self) -> None:
        """Let all blobs hold what the last forward pass computed."""
        if self._forward_only is not None and self._forward_only.is_stale:
            self._forward_only.catch_up()

    def _layer(self, index: int) -> Any:
        layer = self._net.layers[index]
        if isinstance(layer, Python):
            return layer.instance
        count = len(layer.parameters)

        def blob(number: int) -> Blob:
            def find() -> EngineBlob:
                return self._net.layers[index].parameters[number]

            return Blob(find, self._store)

        return Layer(layer.type, BlobVec(blob(number) for number in range(count)))

    # -- running ---------------------------------------------------------------------------------

    def forward(
        self,
        blobs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **inputs: np.ndarray,
    ) -> Arrays:
        """Run the layers start .. end (both included), and return outputs by name.

        blobs: names of blobs to return besides. inputs: values to put into the net's inputs before.
        """
        first = self._index(start, 0)
        last = self._index(end, len(self.layers) - 1)
        names = self.outputs if end is None else self._net.nodes[last].layer.param.top
        if inputs:
            self._put("data", inputs, self.inputs, "Input blob arguments do not match net inputs.")
        if blobs is not None and self._forward_only is not None:
            self._forward_only.want(blobs := list(blobs))
        self._forward(first, last)
        return {name: self.blobs[name].data for name in {*names, *(blobs or ())}}

    def backward(
        self,
        diffs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **outputs: np.ndarray,
    ) -> Arrays:
        """Run backward from layer start down to end (both included); returns diffs by name.

        Gradients of parameters are added to what their diffs hold.
        diffs: names of blobs to return besides. outputs: diffs to put on the net's outputs before.
        """
        first = self._index(start, len(self.layers) - 1)
        last = self._index(end, 0)
        names = self.inputs if end is None else [blob.name for blob in self._net.nodes[last].bottom]
        if outputs:
            message = "Top diff arguments do not match net outputs."
            self._put("diff", outputs, self.outputs, message)
        self._backward(first, last)
        return {name: self.blobs[name].diff for name in {*names, *(diffs or ())}}

    def _index(self, name: str | None, default: int) -> int:
        if name is None:
            return default
        if name not in self._layer_names:
            raise ValueError(
                f'net "{self.name}" has no layer "{name}"; it has {listed(self._layer_names)}'
            )
        return self._layer_names.index(name)

    def _put(self, side: str, given: Arrays, names: list[str], message: str) -> None:
        if set(given) != set(names):
            raise UserError(message)
        for name, values in given.items():
            array = getattr(self.blobs[name], side)
            if len(values) != len(array):
                raise UserError(f"{name}: is not batch sized: {len(values)} for {len(array)}")
            array[...] = values

    # -- whole sets of data: any number of items, batch by batch ---------------------------------

    def forward_all(self, blobs: Iterable[str] | None = None, **inputs: np.ndarray) -> Arrays:
        """Run forward over any number of items, batch by batch; returns all outputs by name."""
        blobs = list(blobs or ())
        results: dict[str, list[np.ndarray]] = {name: [] for name in {*self.outputs, *blobs}}
        for batch in self._batch(inputs):
            for name, values in self.forward(blobs, None, None, **batch).items():
                results[name].extend(values.copy())
        return _cut(results, inputs)

    def forward_backward_all(
        self,
        blobs: Iterable[str] | None = None,
        diffs: Iterable[str] | None = None,
        **given: np.ndarray,
    ) -> tuple[Arrays, Arrays]:
        """Run forward and backward over any number of items, batch by batch.

        given: values for the inputs, and diffs for the outputs. Returns outputs and diffs by name.
        """
        blobs, diffs = list(blobs or ()), list(diffs or ())
        values: dict[str, list[np.ndarray]] = {name: [] for name in {*self.outputs, *blobs}}
        gradients: dict[str, list[np.ndarray]] = {name: [] for name in {*self.inputs, *diffs}}
        inputs = {name: given[name] for name in self.inputs if name in given}
        tops = {name: given[name] for name in self.outputs if name in given}
        for batch, top in zip_longest(self._batch(inputs), self._batch(tops)):
            for name, array in self.forward(blobs, None, None, **(batch or {})).items():
                values[name].extend(array.copy())
            for name, array in self.backward(diffs, None, None, **(top or {})).items():
                gradients[name].extend(array.copy())
        return _cut(values, given), _cut(gradients, given)

    def _batch(self, arrays: Mapping[str, np.ndarray]) -> Iterator[Arrays]:
        """Pieces of the net's batch size; the last one is filled up with zeros."""
        if not arrays:
            return
        size = self.blobs[next(iter(arrays))].shape[0]
        for start in range(0, len(next(iter(arrays.values()))), size):
            pieces = {}
            for name, values in arrays.items():
                piece = np.asarray(values[start : start + size])
                missing = np.zeros((size - len(piece), *piece.shape[1:]), piece.dtype)
                pieces[name] = np.concatenate([piece, missing])
            yield pieces

    # -- the engine ------------------------------------------------------------------------------

    def set_input_arrays(self, data: np.ndarray, labels: np.ndarray) -> None:
        """Let the first MemoryData layer bring these: data (N, channels, height, width), N labels.

        float32, C-contiguous, not copied; N a multiple of the layer's batch_size. Raises UserError.
        """
        layer = next((layer for layer in self._net.layers if isinstance(layer, MemoryData)), None)
        if layer is None:
            raise CaffeError(f'net "{self.name}" has no MemoryData layer to take the arrays')
        layer.set_arrays(data if np.ndim(data) == 4 else data[None], labels)

    def _forward(self, start: int, end: int) -> float:
        """Run layers by their indices; returns the loss."""
        self.prepare()
        full = start == 0 and end == len(self.layers) - 1
        called = self._before_forward or self._after_forward
        if self._forward_only is not None and full and not called and self._forward_only.pays():
            self._forward_only.run()
            self.done()
            return 0.0
        if full and not called and self._forward_only is not None:
            self._forward_only.is_stale = False
        self._catch_up()
        if start <= end:
            _call(self._before_forward, start)

        def after(index: int) -> None:
            if index <= end:
                _call(self._after_forward, index)
            if index < end:
                _call(self._before_forward, index + 1)

        # Behind the last layer the engine sums up the loss.
        self._net.forward(start, None if end == len(self.layers) - 1 else end + 1, after=after)
        self.done()
        return self._net.loss()

    def _backward(self, start: int, end: int) -> None:
        self._catch_up()
        self.prepare()
        _call(self._before_backward, start)

        def after(index: int) -> None:
            _call(self._after_backward, index)
            if index > end:
                _call(self._before_backward, index - 1)

        self._net.backward(start, end, accumulate=True, after=after)
        self.done()

    def prepare(self) -> None:
        """Let the engine's net have what the script changed, before it runs."""
        self.reshape()
        for name in self._net.inputs:
            values = self._store.written(self._net.blobs[name].data)
            if values is not None:
                self._net.labels[name].check_all(values, f'blob "{name}"')
        self._store.upload()
        if self._forward_only is None:  # it may learn, or gather statistics
            self._expose_parameters()

    def _expose_parameters(self) -> None:
        """Nets that share the parameters are to know that these may be written."""
        layers = self._net.layers
        self._store.expose([blob.data for layer in layers for blob in layer.parameters])

    def done(self) -> None:
        """The engine's net has run."""
        self._store.forget()
        self._follow()

    def before_forward(self, function: Callback) -> None:
        """Call function(index of layer) before each layer's forward."""
        self._before_forward.append(function)

    def after_forward(self, function: Callback) -> None:
        """Call function(index of layer) after each layer's forward."""
        self._after_forward.append(function)

    def before_backward(self, function: Callback) -> None:
        """Call function(index of layer) before each layer's backward."""
        self._before_backward.append(function)

    def after_backward(self, function: Callback) -> None:
        """Call function(index of layer) after each layer's backward."""
        self._after_backward.append(function)

    # -- shapes ----------------------------------------------------------------------------------

    def reshape(self) -> None:
        """Let all layers follow the shapes that the script gave to inputs."""
        pending = [name for name, blob in self.blobs.items() if blob.waits]
        if pending:
            if self._forward_only is not None and self._forward_only.outlive(pending):
                self._catch_up()
            self._store.upload()
            self._store.forget()
            self._net.reshape({name: self.blobs[name].shape for name in pending})
            for name in pending:
                self.blobs[name].settle()
            if self._forward_only is not None:
                self._forward_only.reshaped()
            self._follow()

    def _follow(self) -> None:
        """Let the objects of Python layers have their parameters' memory between runs too."""
        if self._net.backend.name == "cpu":
            for layer in self._scripted:
                if layer.instance is not None:
                    for blob, engine in zip(layer.instance.blobs, layer.parameters, strict=True):
                        blob.data, blob.diff = map(self._store.array, (engine.data, engine.diff))

    # -- weights ---------------------------------------------------------------------------------

    def clear_param_diffs(self) -> None:
        """Set the gradients of all parameters to zero."""
        for layer in self.layers:
            for blob in layer.blobs:
                blob.diff[...] = 0

    def share_with(self, other: Net) -> None:
        """Use the parameters of another net's layers of the same names, in place of own ones."""
        self._store.upload()
        self._store.forget()
        for layer, source in same_layers(self._net.layers, other._net.layers).items():
            for mine, theirs in zip(layer.parameters, source.parameters, strict=True):
                if mine.shape != theirs.shape:
                    layer.fail("param", f"cannot share {theirs.shape}: it needs {mine.shape}")
                self._store.expose([mine.data])
                mine.data.place(theirs.data.array.reshape(-1), theirs.data.address)
        if self._forward_only is not None:
            self._forward_only.moved()
        self._follow()

    def copy_from(self, file: str | Path) -> None:
        """Copy the weights of layers of the same names from a .caffemodel or HDF5 file."""
        self._load(_read_model(file), file)

    def _load(self, model: AnyWeights, file: str | Path) -> None:
        self._store.upload()
        self._expose_parameters()
        self.mismatch = load_weights([self._net], [(file, model)])
        self._store.forget()

    load_hdf5 = copy_from

    def save(self, file: str | Path) -> None:
        """Write a .caffemodel."""
        self._store.upload()
        write_weights(file, self._net.to_proto())

    def save_hdf5(self, file: str | Path, write_diff: bool = False) -> None:
        """Write the weights, and perhaps their gradients, as HDF5."""
        self._store.upload()
        write_weights(file, self._net.to_proto(diff=write_diff), hdf5=True)


def check_readable(file: str | Path) -> None:
    """Raise RuntimeError (and UserError in one) for a file that is not there."""
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise CaffeError(f"{file}: cannot read it: {error.strerror}") from None


def _read_model(file: str | Path) -> NetWeights:
    check_readable(file)
    return read_weights(file)


def _call(functions: list[Callback], index: int) -> None:
    for function in functions:
        function(index)


def _cut(results: Mapping[str, list[np.ndarray]], given: Mapping[str, np.ndarray]) -> Arrays:
    """All results as arrays, without those of the zeros that filled the last batch."""
    count = len(next(iter(given.values()))) if given else None
    return {name: np.asarray(values[:count]) for name, values in results.items()}
