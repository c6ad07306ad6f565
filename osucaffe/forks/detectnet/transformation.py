"""DetectNetTransformation: from images and lists of objects to what DetectNet learns from."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ...backends.cores import usable_cores
from ...data.pictures.resample import interpolate
from ...layers.base import Blobs, Layer, Program, Shape, Shapes, register
from ...proto import read_mean
from .variation import CLASS, COLUMNS, Grid, Variation, draw, vary_boxes, vary_image

_BITS = 64
"""Random bits for an image, from which all that is drawn for it follows."""


@register("DetectNetTransformation")
class DetectNetTransformation(Layer):
    """Images and DIGITS's lists of their objects -> images varied, less their mean; grids of boxes.

    In TRAIN, detectnet_augmentation_param says what is drawn; in TEST, images are resized. The host
    computes it, all cores, as the images come from there.
    """

    bottoms = tops = (2, 2)
    no_gradient = non_differentiable_tops = (0, 1)
    messages = (
        "detectnet_groundtruth_param", "detectnet_augmentation_param", "transform_param",
    )  # fmt: skip

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.detectnet_groundtruth_param
        images, lists = bottom
        for i, shape in enumerate(bottom):
            self.check_axes(shape, field=f"bottom[{i}]")
        self.check_bottom(bottom, 0, (images[0], 3, *images[2:]))
        self.check_bottom(bottom, 1, (images[0], 1, lists[2], COLUMNS), ", as DIGITS's lists are")
        self.check_positive("detectnet_groundtruth_param", "stride", "image_size_x", "image_size_y")
        augmentation = self.param.detectnet_augmentation_param
        if augmentation.scale_max < augmentation.scale_min:
            self.fail("detectnet_augmentation_param.scale_max", "is less than scale_min")
        self.grid = Grid(param)
        self.mean = self._mean(images[1:])
        return [(images[0], 3, *self.grid.seen[::-1]), (images[0], *self.grid.shape)]

    def _mean(self, shape: Shape) -> np.ndarray | None:
        param = self.param.transform_param
        if param.crop_size or param.mirror or param.scale != 1:
            self.fail("transform_param", "only the mean is read here: take out the other fields")
        if param.mean_file:
            with self.blame("transform_param.mean_file"):
                mean = read_mean(param.mean_file)
            if mean.shape[0] != 3:
                self.fail("transform_param.mean_file", f"has {mean.shape[0]} channels, not 3")
            if mean.shape != shape:
                planes = mean.transpose(1, 2, 0)
                mean = interpolate(planes, shape[1], shape[2], "CUBIC").transpose(2, 0, 1)
            return mean
        if len(param.mean_value) not in (0, 1, 3):
            self.fail("transform_param.mean_value", "give none, one or three")
        values = np.array(param.mean_value, np.float32)[:, None, None]
        return np.broadcast_to(values, (3, 1, 1)) if len(values) else None

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        reads, shape = [blob.data for blob in bottom], (bottom[0].shape[0], _BITS)
        if self.phase == "TRAIN":
            ones, bits, mask = self.tensor(shape), self.tensor(shape), self.tensor(shape, "uint8")
            program.fill(ones, value=1.0)
            program.dropout(ones, bits, mask, ratio=0.5, key=self.key)
            reads.append(bits)
        program.host(reads, [blob.data for blob in top], function=self._transform)

    def _transform(self, reads: list[np.ndarray], writes: list[np.ndarray]) -> None:
        with ThreadPoolExecutor(usable_cores()) as threads:
            list(threads.map(self._one, *reads[:2], *writes, reads[2] if reads[2:] else reads[0]))

    def _one(
        self, image: np.ndarray, rows: np.ndarray, out: np.ndarray, grid: np.ndarray,
        bits: np.ndarray,
    ) -> None:  # fmt: skip
        """An image (3, height, width) and the list (1, objects + 1, 16) of its objects."""
        size, param = image.shape[:0:-1], self.param.detectnet_augmentation_param
        drawn = Variation(self.grid.seen)
        if self.phase == "TRAIN":
            seed = np.packbits(bits > 0).tolist()
            drawn = draw(param, size, self.grid.seen, np.random.default_rng(seed))
        vary_image(image, self.mean, drawn, out)
        count, columns = rows[0, 0, :2].tolist()
        if columns != COLUMNS or not 0 <= count < rows.shape[1]:
            begins = f"how many of its {rows.shape[1] - 1} rows are objects, and {COLUMNS}"
            self.fail("bottom[1]", f"a list begins with {count:g} and {columns:g}, not {begins}")
        objects = rows[0, 1 : int(count) + 1]
        self.grid.fill(vary_boxes(objects[:, :4], size, drawn), objects[:, CLASS], grid)
