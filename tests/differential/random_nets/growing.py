"""A random net while layers are added, and the tables of what adds them.

It grows layer by layer from Input layers; every blob may be read again by any later layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from osucaffe.errors import UserError
from osucaffe.layer import layer_types
from osucaffe.proto import caffe_pb2

Shape = tuple[int, ...]
LayerParameter = caffe_pb2.LayerParameter

MAX_ELEMENTS = 4000
"""Of a blob: a net takes milliseconds."""
BATCHES = (1, 1, 2, 2, 3, 4, 5, 7)
CHANNELS = (1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 11, 12, 16, 17, 24, 32)
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16)


class Top(NamedTuple):
    """A blob that later layers may read."""

    name: str
    shape: Shape
    differentiable: bool = True
    """Whether its gradient can go back (not through labels and indices)."""
    filtered: bool = False
    """Whether only the run shows how many of its rows there are."""


Maker = Callable[["Growing", LayerParameter, Shape], "bool | None"]
"""Sets a layer's parameters for a first bottom of this shape (and adds further bottoms and tops);
False: there is no such layer for this shape."""
MAKERS: dict[str, Maker] = {}
LOSSES: dict[str, Maker] = {}
FITS: dict[str, Callable[[Shape], bool]] = {}


def _names(text: str) -> list[str]:
    return text.split()


IN_PLACE = frozenset(
    _names(
        "ReLU PReLU ELU Sigmoid TanH AbsVal BNLL Power Exp Dropout BatchNorm Scale Bias Softmax "
        "ReLU6 Swish BN LayerNorm SeLu GELU Clip"
    )
)
FORGETS = frozenset(
    _names(
        "Convolution Deconvolution DepthwiseConvolution ConvolutionDepthwise InnerProduct Scale "
        "Bias BatchNorm BN LayerNorm MVN PReLU Dropout Eltwise Concat Slice Pooling Embed Crop "
        "Permute Tile Interp Im2col BatchReindex ShuffleChannel AbsVal BNLL GELU Swish Power ELU "
        "Parameter"
    )
)
"""What computes its gradients without its top, which the next layer may overwrite."""
SCALAR = IN_PLACE.difference(_names("BatchNorm Scale Bias BN LayerNorm PReLU Softmax")).union(
    _names("EuclideanLoss Silence Eltwise")
)
"""What takes a single number, too."""


def images(shape: Shape) -> bool:
    """N x C x H x W."""
    return len(shape) == 4


def maker(
    *types: str, table: dict[str, Maker] = MAKERS, fits: Callable[[Shape], bool] | None = None
) -> Callable[[Maker], Maker]:
    """Make a function the maker of these layer types. fits: whether there is such a layer for a
    first bottom of this shape, as far as that is known before choices are made."""

    def decorate(function: Maker) -> Maker:
        table.update(dict.fromkeys(types, function))
        FITS.update(dict.fromkeys(types if fits else (), fits))
        return function

    return decorate


class Growing:
    """A net while layers are added. tops: what can be read; unread: what nobody reads yet. wide: in
    which most channels are such as kernels for large convolutions take."""

    def __init__(self, random: Random, *, wide: bool = False) -> None:
        self.random, self.wide = random, wide
        self.most_elements = (4 if wide else 1) * MAX_ELEMENTS
        self.net = caffe_pb2.NetParameter(name="random")
        self.inputs: list[LayerParameter] = []
        self.tops: list[Top] = []
        self.unread: dict[str, Top] = {}
        self.count = 0
        self.shared: list[tuple[str, str, list[Shape]]] = []

    # -- choices ---------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        """True in this share of all cases."""
        return self.random.random() < share

    def choice(self, *values: Any) -> Any:
        """One of the values."""
        return self.random.choice(values)

    def number(self, low: float, high: float) -> float:
        """A short decimal number between two."""
        return round(self.random.uniform(low, high), 2)

    def divisor(self, count: int) -> int:
        """A divisor of a count."""
        return self.random.choice([n for n in range(1, count + 1) if count % n == 0])

    def channels(self, *few: int) -> int:
        """One of these numbers; in a wide net a multiple of 8."""
        return 8 * self.choice(1, 2, 3, 4, 4, 5, 8) if self.wide else int(self.choice(*few))

    def axis(self, dimensions: int, least: int = 0) -> int:
        """An axis, perhaps counted from the end."""
        axis = self.random.randrange(least, dimensions)
        return axis - dimensions if self.chance(0.2) else axis

    def name(self, kind: str) -> str:
        """A name that no layer has yet."""
        self.count += 1
        return f"{kind}_{self.count}"

    # -- blobs -----------------------------------------------------------------------------------

    def input(self, shape: Shape, kind: str = "real") -> str:
        """An Input layer with what the kind says (see `values_of`); its top's name."""
        name = self.name(kind)
        layer = LayerParameter(name=name, type="Input", top=[name])
        layer.input_param.shape.add(dim=shape)
        self.inputs.append(layer)
        if kind == "real":
            self.tops.append(Top(name, shape))
        return name

    def extra(self, shape: Shape) -> str:
        """A blob of this shape: one that there is, or a new input."""
        found = [top for top in self.tops if top.shape == shape and top.differentiable]
        top = self.random.choice(found) if found and self.chance(0.7) else None
        return top.name if top and not top.filtered else self.input(shape)

    def pick(self) -> Top:
        """What the next layer reads: most often what nobody reads yet."""
        unread = [top for top in self.unread.values() if top.differentiable]
        if unread and self.chance(0.75):
            return self.random.choice(unread[-2:])
        return self.random.choice(
            [top for top in self.tops[-6:] if top.differentiable] or self.tops
        )

    # -- layers ----------------------------------------------------------------------------------

    def add(self, kind: str, bottom: Top, make: Maker) -> list[Top]:
        """A layer of this kind on a blob, where there can be one: its tops."""
        name = self.name(kind)
        layer = LayerParameter(name=name, type=kind, bottom=[bottom.name], top=[name])
        inputs = len(self.inputs)
        fits = bool(bottom.shape) or kind in SCALAR
        fits &= kind not in FITS or FITS[kind](bottom.shape)
        shapes = None
        if fits and make(self, layer, bottom.shape) is not False:
            shapes = self.shapes(layer)
        if shapes is None:
            added = {each.name for each in self.inputs[inputs:]}
            self.tops = [top for top in self.tops if top.name not in added]
            del self.inputs[inputs:]
            return []
        return self.append(layer, shapes)

    def append(self, layer: LayerParameter, shapes: list[Shape]) -> list[Top]:
        """Add a layer whose tops have these shapes."""
        made = layer_types()[layer.type]
        self.net.layer.append(layer)
        for bottom in layer.bottom:
            self.unread.pop(bottom, None)
        tops = []
        for index, (name, shape) in enumerate(zip(layer.top, shapes, strict=True)):
            whole = 0 in made.no_gradient and layer.type not in ("Embed",)
            differentiable = not whole and index not in made.non_differentiable_tops
            top = Top(name, shape, differentiable, layer.type == "Filter")
            if name in layer.bottom:
                self.tops = [each for each in self.tops if each.name != name]
            tops.append(top)
            self.tops.append(top)
            self.unread[name] = top
        return tops

    def shapes(self, layer: LayerParameter) -> list[Shape] | None:
        """The shapes of the tops, if there can be such a layer and they are small enough."""
        known = {top.name: top.shape for top in self.tops}
        known |= {each.name: tuple(each.input_param.shape[0].dim) for each in self.inputs}
        kind = layer_types()[layer.type]
        copy = LayerParameter()
        copy.CopyFrom(layer)
        try:
            instance = kind.form(copy)(copy, "TRAIN")
            instance.check_counts()
            found = instance.setup([known[name] for name in layer.bottom])[: len(layer.top)]
        except UserError:
            return None
        shapes = [tuple(map(int, shape)) for shape in found]
        sizes = [math.prod(shape) for shape in shapes]
        sizes += [blob.data.count for blob in instance.parameters]
        if max(sizes, default=0) > self.most_elements:
            return None
        self.share_parameters(layer, [blob.shape for blob in instance.parameters])
        return shapes

    def share_parameters(self, layer: LayerParameter, shapes: list[Shape]) -> None:
        """Now and then let a layer's parameters be those of an earlier layer, or not learn."""
        if not shapes or layer.type in ("BatchNorm", "BN", "CenterLoss"):
            return
        found = [each for each in self.shared if each[2] == shapes]
        if found and self.chance(0.5):
            owner = self.random.choice(found)[1]
        elif self.chance(0.3):
            owner = layer.name
            self.shared.append((layer.type, owner, shapes))
        else:
            if self.chance(0.1):
                for _ in shapes:
                    layer.param.add(lr_mult=self.random.choice((0.0, 1.0)))
            return
        for index in range(len(shapes)):
            layer.param.add(name=f"{owner}.w{index}")
