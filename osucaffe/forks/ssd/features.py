"""What SSD's nets do with feature maps: Permute, PriorBox, and the two layers that are called
Normalize.

SSD's Normalize, whose features of length 1 are scaled by a learned number (ParseNet), is given
norm_param, which NormFace's lacks.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ...layers.base import Blobs, Flags, Layer, Program, Shape, Shapes, register
from ...layers.core.normalization import INV_STD
from ...layers.core.shape import Reordered


@register("Permute")
class Permute(Reordered):
    """The axes in another order: `order` names the old axis at each new place (SSD)."""

    def setup(self, bottom: Shapes) -> Shapes:
        shape, order = bottom[0], list(self.param.permute_param.order)
        if len(set(order)) < len(order) or max(order, default=0) >= len(shape):
            self.fail("permute_param.order", f"{order} must name axes of {shape} once each")
        rest = (axis for axis in range(len(shape)) if axis not in order)
        return [self.order(shape, (*order, *rest))]


@register("Normalize")
class Normalize(Layer):
    """x / its length over the channels (across_spatial: over the image) * a learned scale."""

    messages = ("norm_param", "normalize_param")

    @classmethod
    def form(cls, param: Any) -> type[Layer]:
        return cls if param.HasField("norm_param") else FeatureNormalize

    def setup(self, bottom: Shapes) -> Shapes:
        if self.param.HasField("normalize_param"):
            self.fail("normalize_param", "cannot be combined with norm_param")
        param, shape = self.param.norm_param, bottom[0]
        self.check_axes(shape, "N x C ...")
        self.shape = (shape[0], shape[1], math.prod(shape[2:]))
        self.axes: tuple[int, ...] = (1, 2) if param.across_spatial else (1,)
        self.small = (shape[0], 1, 1 if param.across_spatial else self.shape[2])
        scales = () if param.channel_shared else (shape[1],)
        filler = param.scale_filler if param.HasField("scale_filler") else None
        self.add_parameter(scales, filler, default=1)
        self.others = (0, 1, 2) if param.channel_shared else (0, 2)
        self.scale_shape = (1, 1 if param.channel_shared else shape[1], 1)
        self.constants = {"eps": param.eps}
        return [shape]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.x, self.inv_std = bottom[0].data.view(self.shape), self.tensor(self.small)
        squares = self.tensor(self.small)
        self.scale = self.parameters[0].data.view(self.scale_shape)
        program.reduce([self.x], squares, formula="y = a * a", axes=self.axes)
        program.elementwise([squares], [self.inv_std], formula=INV_STD, constants=self.constants)
        y = top[0].data.view(self.shape)
        program.broadcast([self.x, self.inv_std, self.scale], [y], formula="y = a * b * c")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        inputs = [top[0].diff.view(self.shape), self.x, self.inv_std]
        if (dw := self.gradient(0)) is not None:
            program.reduce(inputs, dw, formula="y = a * b * c", axes=self.others)
        if propagate_down[0]:
            along = self.tensor(self.small)
            inputs.append(self.scale)
            program.reduce(inputs, along, formula="y = a * b * c * d", axes=self.axes)
            dx = bottom[0].diff.view(self.shape)
            formula = "y = c * (a * d - b * c * e)"
            program.broadcast([*inputs, along], [dx], formula=formula)


EPS = 1e-6

NORMS = {
    "L2": ("y = a * a", "y = sqrt(a + eps)", "c"),
    "L1": ("y = abs(a)", "y = a + eps", "sign(b)"),
}
"""Of each type: what is summed over the channels, the norm from that sum, and the norm's derivative
to an element, from the element b of x and c of y."""


class FeatureNormalize(Layer):
    """x over its norm over the channels at each place (a second top: the norm).

    normalize_param: normalize_type, L2 or L1; bp_norm: the second top's gradient goes on to x.
    """

    tops = (1, 2)

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.normalize_param, bottom[0]
        self.check_axes(shape, "N x C ...")
        if param.normalize_type not in NORMS:
            text = f'is "{param.normalize_type}": give one of {", ".join(NORMS)}'
            self.fail("normalize_param.normalize_type", text)
        self.non_differentiable_tops = () if param.bp_norm else (1,)
        self.summed, self.norm_formula, self.slope = NORMS[param.normalize_type]
        self.small = (shape[0], 1, *shape[2:])
        return [shape, self.small]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x = bottom[0].data
        self.norm = top[1].data if len(top) > 1 else self.tensor(self.small)
        total = self.tensor(self.small)
        program.reduce([x], total, formula=self.summed, axes=(1,))
        constants = {"eps": EPS}
        program.elementwise([total], [self.norm], formula=self.norm_formula, constants=constants)
        program.broadcast([x, self.norm], [top[0].data], formula="y = a / b")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        x, y, dy = bottom[0].data, top[0].data, top[0].diff
        dot = self.tensor(self.small)
        program.reduce([dy, y], dot, formula="y = a * b", axes=(1,))
        inputs, formula = [dy, x, y, dot, self.norm], f"(a - {self.slope} * d) / e"
        if len(top) > 1 and not self.non_differentiable_tops:
            inputs, formula = [*inputs, top[1].diff], f"{formula} + {self.slope} * f"
        program.broadcast(inputs, [bottom[0].diff], formula=f"y = {formula}")


SAME_RATIO = 1e-6


@register("PriorBox")
class PriorBox(Layer):
    """Boxes around each place of bottom[0], in shares of the image bottom[1], and their variances.

    They depend on shapes alone: they are computed once, and written when the net is built. In place
    of min_size and what belongs to it, width and height may list the sizes of the boxes.
    """

    bottoms = (2, None)
    no_gradient = (0, 1)

    def setup(self, bottom: Shapes) -> Shapes:
        if any(len(shape) != 4 for shape in bottom[:2]):
            self.fail("bottom", f"have shapes {bottom[:2]}, but must be N x C x H x W")
        self.boxes = _boxes(
            bottom[0][2:], self._image(bottom[1][2:]), self._steps(), self._sizes(),
            self.param.prior_box_param.offset,
        )  # fmt: skip
        if self.param.prior_box_param.clip:
            self.boxes = self.boxes.clip(0, 1)
        variances = np.broadcast_to(self._variances(), self.boxes.shape)
        self.values = np.stack([self.boxes, variances]).reshape(1, 2, -1)
        return [self.values.shape]

    def _image(self, extents: Shape) -> tuple[int, int]:
        """Height and width of the image, in pixels."""
        return self._pair("img_size", ("img_h", "img_w"), extents)

    def _steps(self) -> tuple[float, float]:
        """Pixels from one place to the next by height and width; 0: as many as fit."""
        return self._pair("step", ("step_h", "step_w"), (0, 0))

    def _pair(self, both: str, sides: tuple[str, str], default: tuple) -> tuple:
        """A number for each of height and width, or one for both."""
        param = self.param.prior_box_param
        if param.HasField(both) and any(param.HasField(side) for side in sides):
            self.fail(f"prior_box_param.{both}", f"give either it, or {' and '.join(sides)}")
        if param.HasField(both):
            return (getattr(param, both),) * 2
        pair = tuple(getattr(param, side) for side in sides)
        if any(pair) and not all(pair):
            self.fail(f"prior_box_param.{sides[0]}", f"give both {' and '.join(sides)}")
        return pair if all(pair) else default

    def _sizes(self) -> list[tuple[float, float]]:
        """Width and height, in pixels, of each box of a place, in order."""
        param = self.param.prior_box_param
        if param.width or param.height:
            return self._listed(param)
        smallest, largest = [int(s) for s in param.min_size], [int(s) for s in param.max_size]
        if not smallest or min(smallest) < 1:
            self.fail("prior_box_param.min_size", "give one or more, of at least a pixel")
        if largest and len(largest) != len(smallest):
            self.fail("prior_box_param.max_size", f"give none, or {len(smallest)} as of min_size")
        if any(high <= low for low, high in zip(smallest, largest, strict=False)):
            self.fail("prior_box_param.max_size", "each must be larger than its min_size")
        sizes: list[tuple[float, float]] = []
        for low, high in itertools.zip_longest(smallest, largest):
            sizes.append((low, low))
            if high is not None:
                sizes.append(((low * high) ** 0.5,) * 2)
            sizes += [(low * ratio**0.5, low / ratio**0.5) for ratio in self._ratios()]
        return sizes

    def _listed(self, param: Any) -> list[tuple[float, float]]:
        if len(param.width) != len(param.height):
            counts = f"are given {len(param.width)} and {len(param.height)} times"
            self.fail("prior_box_param.width", f"and height {counts}: one of each for a box")
        if min(*param.width, *param.height) <= 0:
            self.fail("prior_box_param.width", "and height must be above 0")
        for field in "min_size", "max_size", "aspect_ratio":
            if getattr(param, field):
                self.fail(f"prior_box_param.{field}", "give either it, or width and height")
        return list(zip(param.width, param.height, strict=True))

    def _ratios(self) -> list[float]:
        """The ratios of width to height besides 1."""
        param = self.param.prior_box_param
        ratios = [1.0]
        for ratio in param.aspect_ratio:
            if ratio <= 0:
                self.fail("prior_box_param.aspect_ratio", f"{ratio:g} must be above 0")
            if all(abs(ratio - other) >= SAME_RATIO for other in ratios):
                ratios += [ratio, 1 / ratio] if param.flip else [ratio]
        return [ratio for ratio in ratios if abs(ratio - 1) >= SAME_RATIO]

    def _variances(self) -> list[float]:
        given = list(self.param.prior_box_param.variance) or [0.1]
        if len(given) not in (1, 4) or min(given) <= 0:
            self.fail("prior_box_param.variance", "give none, one or four, above 0")
        return given

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        top[0].keep_exact()
        self.initial = [(top[0].data, self.values)]


@register("PriorBoxClustered")
class PriorBoxClustered(PriorBox):
    """PriorBox of widths and heights (OpenVINO's training toolbox)."""

    messages = ("prior_box_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        self.require("prior_box_param", width="give the width and height of each box of a place")
        return super().setup(bottom)


def _boxes(
    extents: Shape,
    image: tuple[int, int],
    steps: tuple[float, float],
    sizes: list[tuple[float, float]],
    offset: float,
) -> np.ndarray:
    """The boxes (height, width, sizes, 4), in shares of the image."""
    centres = [
        (np.arange(extent) + offset) * (step or side / extent)
        for extent, side, step in zip(extents, image, steps, strict=True)
    ]
    y, x = np.meshgrid(*centres, indexing="ij")
    middle = np.stack([x, y], axis=-1)[:, :, None]
    half = np.array(sizes) / 2
    scale = np.array([image[1], image[0]])
    return np.concatenate([(middle - half) / scale, (middle + half) / scale], axis=-1)
