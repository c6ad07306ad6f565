"""The base class of layers, the names that layer modules import, the registry of layer types."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, TypeVar

from ..backends.primitives import Program
from ..backends.tensor import Shape, Tensor
from ..blob import Blob
from ..data.config import DataConfig
from ..errors import UserError
from ..labels import Classes, Labels
from ..proto import caffe_pb2
from ..proto.blobs import MAX_VALUES
from ..proto.titles import label, title

if TYPE_CHECKING:
    import numpy as np


__all__ = [
    "Arrays", "Blob", "Blobs", "Context", "Count", "Flags", "Layer", "Program", "Reshaped",
    "Shape", "Shapes", "Splitter", "Tensor", "pass_on", "register",
]  # fmt: skip
"""What a file of layers needs."""

Count = tuple[int, int | None]
_LayerType = TypeVar("_LayerType", bound=type["Layer"])
_AnyLayer = TypeVar("_AnyLayer", bound="Layer")

LayerClass: TypeAlias = "type[Layer]"
Arrays: TypeAlias = "list[np.ndarray]"
"""What a host function reads, or writes."""
Blobs: TypeAlias = "list[Blob]"
Flags: TypeAlias = "list[bool]"
Shapes: TypeAlias = "list[Shape]"

registered: dict[str, LayerClass] = {}
"""The layer types whose modules have been imported, by name."""


def pass_on(program: Program, x: Tensor, y: Tensor) -> None:
    """Copy x to y, unless they are one, in place."""
    if x is not y:
        program.copy(x, y)


def register(name: str) -> Callable[[_LayerType], _LayerType]:
    """Make a class the layer of this type. A second class for one type is an error, but for one of
    the same module and name: a notebook's cell may be run again."""

    def decorate(layer_type: _LayerType) -> _LayerType:
        known = registered.get(name, layer_type)
        if any(
            getattr(known, at) != getattr(layer_type, at) for at in ("__module__", "__qualname__")
        ):
            raise ValueError(f"layer type {name} is registered twice")
        layer_type.type = name
        registered[name] = layer_type
        return layer_type

    return decorate


class Reshaped(Exception):
    """A layer's host function gives its tops other shapes: the net is to call `setup`, which tells
    them, and then the function again."""


class Splitter(Protocol):
    """Decides which layers divide their parameters among the ranks that train together.

    comm: their communicator (`comm/communicator.py`); blocks: the host waits for its operations.
    """

    comm: Any
    blocks: bool

    def splits(self, layer: Layer, rows: int, inputs: int, outputs: int, unfit: str) -> bool:
        """Whether a layer is to compute only this rank's part of its outputs, but for all ranks'
        rows. unfit: why it cannot."""

    def report(self, net: Any) -> None:
        """Log what of a net it has divided. UserError where that is not what was asked for."""


@dataclass(frozen=True)
class Context:
    """What the layers of a net share.

    backend: where it runs (None: a layer without a net). data: how layers read theirs.
    inspectable: every blob keeps memory of its own: then what a layer keeps does, too, so that it
    outlives a later layer that reshapes the net while it runs. splitter: divides the parameters of
    layers among ranks. loss_scale: one element that all gradients are multiplied by.
    """

    backend: Any = None
    data: DataConfig = DataConfig()
    inspectable: bool = False
    splitter: Splitter | None = None
    loss_scale: Tensor | None = None

    @property
    def raw_records(self) -> bool:
        """Whether the backend wants records as they are stored, and transforms them itself."""
        return self.backend is not None and self.backend.raw_records


class Layer:
    """Shape inference plus calls of primitives. See docs/architecture.md for an example."""

    type: str = ""
    bottoms: Count = (1, 1)
    """The least and the greatest number of bottoms (None: any)."""
    tops: Count = (1, 1)
    in_place: bool = False
    """The first top may be the first bottom."""
    loss: bool = False
    """The first top has a loss weight of 1 by default, and may be left out of the prototxt."""
    no_gradient: tuple[int, ...] = ()
    """Bottoms (labels, say) that never get a gradient."""
    non_differentiable_tops: tuple[int, ...] = ()
    """Tops, such as masks, through which no gradient goes back."""
    reshapes: bool = False
    """It may raise Reshaped while it runs."""
    takes_empty: bool = False
    """Its bottoms and tops may be without elements."""
    dynamic: bool = False
    """Its tops change their shapes all the time: a net that has one keeps every blob apart."""
    host_is_pure: bool = False
    """What it computes on the host depends on its bottoms and parameters alone, and that is all it
    does there: a pass may be computed again, or by another net of the same parameters."""
    messages: tuple[str, ...] | None = None
    """The fields of LayerParameter that hold its settings (None: that of its own name, if any)."""
    record_shape: Shape | None = None
    """Of a layer that reads images: (channels, height, width) of the first, before any crop."""
    records: int = 0
    """Of a layer that reads a data set, where it knows: how many records that has."""
    alias: tuple[str, ...] = ()
    """What the tops share with the first bottom: ("data",) or ("data", "diff")."""
    saved_shapes: tuple[Shape, ...] = ()
    """Shapes besides their own that parameters may have in model files (of another fork)."""
    statistics: tuple[int, ...] = ()
    """Parameters that are measured, not learned: several ranks average them."""
    computed: tuple[int, ...] = ()
    """Of a layer without bottoms: the tops that primitives compute, not the host."""
    derived: bool = False
    """Its calls state their gradients (`Primitive.gradient`), and it does in `backward` what these
    do not: so its gradients may be one with those of the next layer, where the calls are fused."""
    share: Tensor | None = None
    """Of a layer with gradients that do not follow the losses' weights: one element that those are
    multiplied by, 1 until several ranks make it the part of each."""
    is_split: bool = False
    """Whether it divides them: this rank computes with, and updates, its part of each."""

    def __init__(self, param: caffe_pb2.LayerParameter, phase: str, *, key: int = 0, seed: int = 0):
        """key: a number of its own for random draws; seed: the net's."""
        self.param = param
        self.name: str = param.name
        """May be missing, or be that of others too: a layer is its place in the net."""
        self.title, self.label = title(param), label(param)
        """What messages call it; what tables, traces and the log do."""
        self.phase = phase
        self.context = Context()
        """Of its net, which sets it."""
        self.key = key
        self.seed = seed
        self.parameters: list[Blob] = []
        self.fillers: list[caffe_pb2.FillerParameter | None] = []
        self.need_gradients: list[bool] = []
        self.tensors: list[Tensor] = []
        """Memory of its own: what `tensor` gave since its net was recorded."""
        self.initial: list[tuple[Tensor, np.ndarray]] = []
        """What is written once, when the net has been built: parameters and constant tops."""
        self.label_bottoms: dict[int, Classes] = {}
        """Which bottoms hold labels, and which of them this layer takes."""

    # -- what a layer type defines ---------------------------------------------------------------

    def setup(self, bottom: Shapes) -> Shapes:
        """Check the settings, declare the parameters, return the shapes of the tops."""
        raise NotImplementedError

    @classmethod
    def is_dynamic(cls, param: caffe_pb2.LayerParameter) -> bool:
        """Whether a layer of these settings is `dynamic`."""
        return cls.dynamic

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        """Record what computes the tops' data."""

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        """Record what computes the bottoms' diffs (where propagate_down) and the parameters'.

        Not called where neither is needed: a layer without parameters, of whose bottoms only one
        may get a gradient, need not look at propagate_down.
        """

    def limit_labels(self, top: int, labels: Labels) -> None:
        """Of a layer without bottoms: learn which labels the layers take that read this top."""

    def saved_blobs(self, blobs: Sequence[caffe_pb2.BlobProto]) -> Sequence[caffe_pb2.BlobProto]:
        """The blobs that a model file has for its parameters, where another fork wrote them
        otherwise."""
        return blobs

    # -- what a layer type uses ------------------------------------------------------------------

    def add_parameter(
        self,
        shape: Shape,
        filler: caffe_pb2.FillerParameter | None = None,
        default: float | None = None,
    ) -> Blob:
        """Declare the next parameter, filled with `filler` (None: the default, or zeros)."""
        index = len(self.parameters)
        if filler is None and default is not None:
            filler = caffe_pb2.FillerParameter(value=default)
        self.check_shape("param", f"parameter {index}", shape)
        blob = Blob(f"{self.name}.{index}", shape, flexible=True)
        blob.diff.is_sum = True
        self.parameters.append(blob)
        self.fillers.append(filler)
        self.need_gradients.append(self.spec(index).lr_mult != 0)
        return blob

    def spec(self, index: int) -> caffe_pb2.ParamSpec:
        """The ParamSpec of a parameter: its name, share mode and multipliers."""
        if index < len(self.param.param):
            return self.param.param[index]
        return caffe_pb2.ParamSpec()

    def gradient(self, index: int) -> Tensor | None:
        """The diff of a parameter where it exists and is needed, else None."""
        if index < len(self.parameters) and self.need_gradients[index]:
            return self.parameters[index].diff
        return None

    def tensor(
        self,
        shape: Shape,
        dtype: str = "float32",
        *,
        flexible: bool = False,
        persistent: bool = False,
    ) -> Tensor:
        """Memory of the layer's own that lives from forward to backward (persistent: for ever)."""
        self.check_shape("bottom", "memory of its own", shape)
        made = Tensor(
            shape,
            dtype,
            f"{self.name}.{self.type}",
            flexible=flexible and not self.context.inspectable,
            persistent=persistent or self.context.inspectable,
        )
        self.tensors.append(made)
        return made

    def saved_input(
        self, program: Program, bottom: Blobs, top: Blobs, *, flexible: bool = True
    ) -> Tensor:
        """The first bottom's data, or a copy where the layer works in place."""
        x = bottom[0].data
        if bottom[0] is not top[0]:
            return x
        saved = self.tensor(x.shape, flexible=flexible)
        program.copy(x, saved)
        return saved

    def indices(self, program: Program, shape: Shape) -> Tensor:
        """Memory of the layer's own with 0, 1, 2 ... : the numbers of classes, say."""
        made = self.tensor(shape)
        program.arange(made)
        return made

    def delegate(
        self, make: Callable[..., _AnyLayer], param: caffe_pb2.LayerParameter, key: int
    ) -> _AnyLayer:
        """A layer that does a part of this one's work: what it keeps is this one's."""
        layer = make(param, self.phase, key=key, seed=self.seed)
        layer.context, layer.tensors = self.context, self.tensors
        return layer

    def take_labels(
        self,
        bottom: Shapes,
        count: int,
        classes: int,
        ignored: int | None = None,
        like: str = "",
        index: int = 1,
    ) -> None:
        """Declare that a bottom holds labels, 0 to classes - 1 or the one that is ignored, and
        refuse it if there are not that many."""
        self.check_count(bottom, index, count, "labels", like)
        self.label_bottoms[index] = Classes(self.title, classes, ignored)

    @classmethod
    def form(cls, param: Any) -> LayerClass:
        """The class for this LayerParameter: two forks may mean two layers by one name."""
        return cls

    def axis(self, axis: int, dimensions: int, field: str = "axis") -> int:
        """A checked axis as a number from 0; negative ones count from the end."""
        if not -dimensions <= axis < dimensions:
            self.fail(field, f"axis {axis} is out of range for a blob of {dimensions} dimensions")
        return axis % dimensions

    def check_axes(self, shape: Shape, axes: str = "N x C x H x W", field: str = "bottom") -> None:
        """Refuse a bottom of other axes ("...": and any more)."""
        named = axes.removesuffix(" ...").split(" x ")
        if len(shape) < len(named) or (len(shape) > len(named) and "..." not in axes):
            self.fail(field, f"has shape {shape}, but must be {axes}")

    def check_bottom(self, bottom: Shapes, index: int, shape: Shape, like: str = "") -> None:
        """Refuse a bottom of another shape; like: why it must be this one."""
        if bottom[index] != shape:
            self.fail(f"bottom[{index}]", f"has shape {bottom[index]}, but must be {shape}{like}")

    def check_alike(self, bottom: Shapes) -> None:
        """Refuse bottoms of other shapes than the first."""
        for index in range(len(bottom)):
            self.check_bottom(bottom, index, bottom[0], ", as bottom[0]")

    def check_count(
        self, bottom: Shapes, index: int, count: int, of: str = "numbers", like: str = ""
    ) -> None:
        """Refuse a bottom that does not hold that many numbers (or labels, say), in any shape."""
        if math.prod(bottom[index]) != count:
            text = f"has shape {bottom[index]}, but must hold {count} {of}{like}"
            self.fail(f"bottom[{index}]", text)

    def check_positive(self, message: str, *fields: str) -> None:
        """Refuse numbers below 1."""
        for field in fields:
            if getattr(getattr(self.param, message), field) < 1:
                self.fail(f"{message}.{field}", "must be at least 1")

    def require(self, message: str, **fields: str) -> None:
        """Refuse fields that are not set; of each, what it must be."""
        for field, remedy in fields.items():
            if not getattr(getattr(self.param, message), field):
                self.fail(f"{message}.{field}", f"is missing: {remedy}")

    @contextmanager
    def blame(self, field: str) -> Iterator[None]:
        """Let a UserError that does not name the layer yet name it, and this field."""
        try:
            yield
        except UserError as error:
            if str(error).startswith(self.title):
                raise
            self.fail(field, str(error))

    def check_shape(self, field: str, what: str, shape: Shape) -> None:
        """Refuse a tensor that no blob could be: one without elements (unless the layer can do with
        these), or with more than an int counts."""
        least = 0 if self.takes_empty else 1
        if any(extent < least for extent in shape):
            wrong = f"{what} would have shape {tuple(shape)}"
            self.fail(field, f"{wrong}: each extent must be at least {least}")
        if math.prod(map(int, shape)) > MAX_VALUES:
            self.fail(
                field, f"{what} would have shape {tuple(shape)}: more than {MAX_VALUES} elements"
            )

    def fail(self, field: str, text: str) -> NoReturn:
        """Refuse the net because of a field of this layer."""
        raise UserError(f"{self.title}, {field}: {text}")

    def check_counts(self) -> None:
        """Refuse a wrong number of bottoms or tops."""
        for field, count, (least, most) in (
            ("bottom", len(self.param.bottom), self.bottoms),
            ("top", len(self.param.top), self.tops),
        ):
            least = 0 if field == "top" and self.loss else least
            if count < least or (most is not None and count > most):
                needed = f"{least}" if least == most else f"{least} to {most}"
                if most is None:
                    needed = f"at least {least}"
                self.fail(field, f"needs {needed}, but the net gives it {count}")
