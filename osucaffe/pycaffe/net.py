"""pycaffe's Net: blobs and parameters as arrays, forward and backward by layer names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from .. import net as core
from ..api import summary
from ..backends.tensor import Shape, Tensor
from ..blob import Blob as EngineBlob
from ..errors import UserError, listed
from ..graph.parameters import same_layers
from ..layers.core.python import Python
from ..layers.reading.memory import MemoryData
from ..loading import load_weights
from ..proto import AnyWeights, NetWeights, read_net, read_weights, write_weights
from . import settings
from .blob import Blob, BlobVec
from .forward_only import ForwardOnly, overwritten
from .store import Store, store_of

Arrays = dict[str, np.ndarray]
Callback = Callable[[int], None]
PHASES = ("TRAIN", "TEST")


class CaffeError(UserError, RuntimeError):
    """Raised where pycaffe raises RuntimeError, which scripts catch."""


class Layer:
    """What a script sees of a layer: `type` and `blobs`. A Python layer is its own object."""

    def __init__(self, type: str, blobs: BlobVec, adapt: Callable[[], None]) -> None:
        """adapt: lets all layers of its net have the shapes that the script gave to inputs."""
        self.type = type
        self.blobs = blobs
        self._adapt = adapt

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Give its tops their shapes, as the whole net's. bottom, top: its own blobs."""
        self._adapt()

    setup = reshape

    def __repr__(self) -> str:
        shapes = ", ".join("x".join(map(str, blob.shape)) for blob in self.blobs)
        return f"Layer {self.type}({shapes})"


class Net:
    """A net with its parameters, to run layer by layer.

    Net(file, phase, level=0, stages=(), weights=None), or as of old Net(file, weights, phase).
    phase: 0 (TRAIN) or 1 (TEST). engine: Intel's, which says how, not what; not used. Missing files
    raise RuntimeError, bad nets UserError.
    """

    def __init__(
        self,
        network_file: str | Path,
        phase: Any,
        level: Any = 0,
        stages: Iterable[str] | None = None,
        weights: str | Path | None = None,
        engine: str | None = None,
    ) -> None:
        if isinstance(phase, str | Path):
            weights, phase, level = phase, level, 0
        if phase not in (0, 1):
            raise CaffeError(f"phase {phase!r} is neither caffe.TRAIN (0) nor caffe.TEST (1)")
        check_readable(network_file)
        given = None if weights is None else (_read_model(weights), weights)
        param, state = read_net(network_file), {"level": level, "stages": list(stages or ())}
        net = core.Net(
            param,
            backend=settings.backend(),
            phase=PHASES[phase],
            seed=settings.next_seed(),
            inspectable=True,
            on_demand=True,
            gradients=True,
            **state,
        )
        if not (is_served := ForwardOnly.serves(net)):
            net.ready()
        self._begin(net)
        if is_served:

            def make_fast(wanted: Iterable[str]) -> core.Net:
                options: Any = {"share": net, "inference": True, "wanted": wanted, **state}
                return core.Net(param, backend=net.backend, phase=net.phase, **options)

            self._forward_only = ForwardOnly(net, self._store, make_fast)
        if given is not None:
            self._load(*given)

    @classmethod
    def of(cls, net: core.Net) -> Net:
        """Wrap an engine's net (an inspectable one) for scripts."""
        self = cls.__new__(cls)
        self._begin(net)
        return self

    _forward_only: ForwardOnly | None = None
    """Runs forward faster, if the result depends on inputs and parameters alone."""
    mismatch = ""
    """Layers missing from the file of weights, and those in it that this net does not have."""

    def _begin(self, net: core.Net) -> None:
        self._store: Store = store_of(net.backend)
        self._waiting: set[Blob] = set()
        """Blobs that were reshaped, while the net has not adapted yet."""
        self._before_forward: list[Callback] = []
        self._after_forward: list[Callback] = []
        self._before_backward: list[Callback] = []
        self._after_backward: list[Callback] = []
        self.use(net)

    def use(self, net: core.Net) -> None:
        """Use this net of the engine."""
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
        self._own_tensors()
        self._follow()

    _keeps_inputs = False
    """Whether no run changes an input (where the net runs beside the script)."""
    _computed: Sequence[Tensor] = ()
    """There: the outputs that do not lie in an input's memory."""
    _results: Sequence[Tensor] = ()
    """There: those that a run may change."""

    def _own_tensors(self) -> None:
        """Tell the store whose the blobs are, where they are not in the host's memory."""
        if not self._store.is_beside:
            return
        net = self._net
        blobs = [tensor for blob in net.blobs.values() for tensor in (blob.data, blob.diff)]
        inputs = {net.blobs[name].data for name in net.inputs}
        kept = inputs - overwritten(net, inputs)
        self._keeps_inputs = kept == inputs
        given, stays = ({tensor.address for tensor in tensors} for tensors in (inputs, kept))
        outputs = [net.blobs[name].data for name in net.outputs]
        self._computed = [tensor for tensor in outputs if tensor.address not in given]
        self._results = [tensor for tensor in outputs if tensor.address not in stays]
        self._store.own(self, blobs, kept)

    def _blob(self, name: str) -> Blob:
        def look() -> None:
            if self._forward_only is not None and not self._forward_only.has(name):
                self._catch_up()
                self._forward_only.want([name])

        def find() -> EngineBlob:
            return self._net.blobs[name]

        def before(shape: Shape) -> Tensor | None:
            return self._net.input_of(name, shape)

        return Blob(find, self._store, self._complete, look, self._waiting, before)

    def _complete(self) -> None:
        """Give all blobs, and the gradients of parameters, memory."""
        self._net.complete()

    def _catch_up(self) -> None:
        """Bring all blobs up to date with the last forward pass."""
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

            return Blob(find, self._store, self._complete)

        return Layer(layer.type, BlobVec(blob(number) for number in range(count)), self.reshape)

    def __repr__(self) -> str:
        return summary.text(self._net)

    def _repr_html_(self) -> str:
        return summary.html(self._net)

    # -- by numbers, as Caffe's extension module has it ------------------------------------------

    @property
    def _blob_names(self) -> list[str]:
        return list(self.blobs)

    @property
    def _blobs(self) -> list[Blob]:
        return list(self.blobs.values())

    @property
    def _blob_loss_weights(self) -> list[float]:
        return list(self.blob_loss_weights.values())

    def _ids(self, names: Iterable[str]) -> list[int]:
        """The numbers of blobs."""
        number = {name: index for index, name in enumerate(self.blobs)}
        return [number[name] for name in names]

    def _bottom_ids(self, layer: int) -> list[int]:
        return self._ids(blob.name for blob in self._net.nodes[layer].bottom)

    def _top_ids(self, layer: int) -> list[int]:
        return self._ids(blob.name for blob in self._net.nodes[layer].top)

    _inputs = property(lambda self: self._ids(self.inputs))
    _outputs = property(lambda self: self._ids(self.outputs))
    _input_list = property(lambda self: self.inputs)
    _output_list = property(lambda self: self.outputs)

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
            self._put_inputs(inputs)
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

    def _put_inputs(self, given: Arrays) -> None:
        self._put("data", given, self.inputs, "Input blob arguments do not match net inputs.")

    def _put(self, side: str, given: Arrays, names: list[str], message: str) -> None:
        if set(given) != set(names):
            raise UserError(message)
        for name, values in given.items():
            array = getattr(self.blobs[name], side)
            if len(values) != len(array):
                raise UserError(f"{name}: is not batch sized: {len(values)} for {len(array)}")
            array[...] = values

    # -- data sets: any number of items, batch by batch ------------------------------------------

    def forward_all(self, blobs: Iterable[str] | None = None, **inputs: np.ndarray) -> Arrays:
        """Run forward over any number of items, batch by batch; returns all outputs by name."""
        names, pieces = list(dict.fromkeys([*self.outputs, *(blobs or ())])), list[Arrays]()
        if self._forward_only is not None:
            self._forward_only.want(names)
        called = self._before_forward or self._after_forward
        beside = self._store.is_beside and self._keeps_inputs and not called
        beside = beside and set(names).isdisjoint(self.inputs)

        def gather() -> None:
            pieces.append({name: self.blobs[name].data.copy() for name in names})

        runs = False
        for batch in self._batch(inputs):
            if runs:
                self._store.wait_for_uploads()
            self._put_inputs(batch)
            if runs:
                self._end_pass()
                gather()
            # A device computes while the host fills the next batch.
            if not (runs := beside and self._begin_pass(note=True)):
                self._forward(0, len(self.layers) - 1)
                gather()
        if runs:
            self._end_pass()
            gather()
        results = {name: [row for piece in pieces for row in piece[name]] for name in names}
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
                if missing := size - len(piece):
                    zeros = np.zeros((missing, *piece.shape[1:]), piece.dtype)
                    piece = np.concatenate([piece, zeros])
                pieces[name] = piece
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

    _set_input_arrays = set_input_arrays

    def _forward(self, start: int, end: int) -> float:
        """Run layers by their indices; returns the loss."""
        full = start == 0 and end == len(self.layers) - 1
        full = full and not self._before_forward and not self._after_forward
        if full and self._begin_pass():
            self._end_pass()
            return 0.0
        if not full:
            self._catch_up()
        self.prepare(reach=end + 1)
        if self._forward_only is not None:
            self._forward_only.is_stale = False
        if start <= end:
            _call(self._before_forward, start)

        def after(index: int) -> None:
            if index <= end:
                _call(self._after_forward, index)
            if index < end:
                _call(self._before_forward, index + 1)

        # After the last layer the engine sums up the loss.
        self._net.forward(start, None if end == len(self.layers) - 1 else end + 1, after=after)
        self.done()
        return self._net.loss()

    def _begin_pass(self, *, note: bool = False) -> bool:
        """Begin to run all of forward without the blobs that the script does not read, if that can
        be; `_end_pass` waits for what it computes. note: for `Store.wait_for_uploads`."""
        self.reshape()
        fast = self._forward_only
        if fast is None or not fast.pays():
            return False
        self.prepare(overwritten=self._computed)
        if note:
            self._store.note_uploads()
        fast.run()
        return True

    def _end_pass(self) -> None:
        self.done(bring=self._results)

    def _backward(self, start: int, end: int) -> None:
        self._catch_up()
        self.prepare(reach=start + 1)
        _call(self._before_backward, start)

        def after(index: int) -> None:
            _call(self._after_backward, index)
            if index > end:
                _call(self._before_backward, index - 1)

        self._net.backward(start, end, accumulate=True, after=after)
        self.done()

    def prepare(self, overwritten: Iterable[Tensor] = (), reach: int | None = None) -> None:
        """Pass the script's changes to the engine's net, before it runs, but for those of tensors
        that the run overwrites in any case. reach: how many layers it may run (default: all)."""
        self._adapt(reach)
        for name in self._net.inputs:
            values = self._store.written(self._net.blobs[name].data)
            if values is not None:
                self._net.labels[name].check_all(values, f'blob "{name}"')
        self._store.upload(self, but=overwritten)
        if self._forward_only is None:  # it may learn, or gather statistics
            self._expose_parameters()

    def _expose_parameters(self) -> None:
        """Notify nets that share the parameters that these may be written."""
        layers = self._net.layers
        self._store.expose([blob.data for layer in layers for blob in layer.parameters])

    def done(self, bring: Iterable[Tensor] = ()) -> None:
        """The engine's net has run. bring: what the script is about to ask for."""
        self._store.forget(self, bring)
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
        """Adapt all layers to the shapes that the script gave to inputs."""
        self._adapt(None)

    def _adapt(self, reach: int | None) -> None:
        """Adapt that many layers, and the others if they can have these shapes."""
        reach = None if reach == len(self.layers) else reach
        if not self._waiting and self._net.reach >= (reach or len(self.layers)):
            return
        pending = [name for name, blob in self.blobs.items() if blob in self._waiting]
        if self._forward_only is not None and self._forward_only.outlive(pending):
            self._catch_up()
        self._store.upload(self, but=[t for name in pending for t in self.blobs[name].pending])
        before = [blob.data for blob in self._net.blobs.values()]
        before += [tensor for name in pending for tensor in self.blobs[name].pending]
        known = {tensor.address for tensor in before}
        self._net.reshape({name: self.blobs[name].shape for name in pending}, reach)
        for blob in self._net.blobs.values():
            if blob.data.address not in known:
                self._store.detach(blob.data)
        self._store.forget(self)
        self._waiting.clear()
        self._own_tensors()
        for name in pending:
            self.blobs[name].settle()
        if self._forward_only is not None:
            self._forward_only.reshaped()
        self._follow()

    def _follow(self) -> None:
        """Give Python layers' objects access to their parameters' memory between runs too."""
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
        """Use the parameters of another net's layers of the same names instead of its own."""
        self._store.upload()
        self._store.forget()
        for layer, source in same_layers(self._net.layers, other._net.layers).items():
            for mine, theirs in zip(layer.parameters, source.parameters, strict=True):
                if mine.shape != theirs.shape:
                    layer.fail("param", f"cannot share {theirs.shape}: it needs {mine.shape}")
                self._store.expose([mine.data])
                mine.data.place(theirs.data.array.reshape(-1), theirs.data.address)
        if self._forward_only is not None:
            self._forward_only.parameters_moved()
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
        if write_diff:
            self._complete()
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
    """All results as arrays, without those of the last batch's padding."""
    count = len(next(iter(given.values()))) if given else None
    return {name: np.asarray(values[:count]) for name, values in results.items()}
