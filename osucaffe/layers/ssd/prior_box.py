"""Owns PriorBox: boxes of some sizes and ratios around each place of a feature map (SSD)."""

from __future__ import annotations

import itertools

import numpy as np

from ..base import Blobs, Layer, Program, Shape, Shapes, register

SAME_RATIO = 1e-6


@register("PriorBox")
class PriorBox(Layer):
    """Boxes around each place of bottom[0], in shares of the image bottom[1], and their variances.

    They depend on shapes alone: they are computed once, and written when the net is built.
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
