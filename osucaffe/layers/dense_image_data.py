"""Owns the layer DenseImageData, which reads images and images of labels that a list names."""

from __future__ import annotations

from osucaffe.backends.cores import usable_cores
from osucaffe.backends.tensor import Shape
from osucaffe.data.ahead import BadRecords
from osucaffe.data.dense_images import DenseImageSource
from osucaffe.data.settings import settings
from osucaffe.data.transform import Transform
from osucaffe.errors import UserError
from osucaffe.labels import Labels
from osucaffe.layer import register

from .feed import Stream


@register("DenseImageData")
class DenseImageData(Stream):
    """Images, and a label for each of their pixels, from a list of pairs of files (SegNet, ENet).

    Both are resized (labels to the nearest), cropped and mirrored alike. label_divide_factor:
    labels are so much smaller than the images.
    """

    tops = (2, 2)
    messages = ("dense_image_data_param", "transform_param")

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        param, transformation = self.param.dense_image_data_param, self.param.transform_param
        where = "dense_image_data_param"
        if not param.source:
            self.fail(f"{where}.source", "is missing: name a file with lines IMAGE LABELS")
        if not param.batch_size:
            self.fail(f"{where}.batch_size", "must be at least 1")
        for pair in ("new_height", "new_width"), ("crop_height", "crop_width"):
            if len({bool(getattr(param, field)) for field in pair}) > 1:
                self.fail(where, f"give both {pair[0]} and {pair[1]}, or neither")
        if param.label_divide_factor < 1:
            self.fail(f"{where}.label_divide_factor", "must be at least 1")
        crop = (param.crop_height or transformation.crop_size,
                param.crop_width or transformation.crop_size)  # fmt: skip
        mirror = param.mirror or transformation.mirror
        if any(crop) and param.label_divide_factor > 1:
            self.fail(f"{where}.label_divide_factor", "cannot be given with a crop")
        # Crops and mirror images are labels' matter too: the transform has the rest.
        whole = type(transformation)()
        whole.CopyFrom(transformation)
        whole.ClearField("crop_size")
        whole.ClearField("mirror")
        if param.mean_file and not whole.mean_file:
            whole.mean_file = param.mean_file
        transform = Transform(whole, self.phase, self.fail)
        try:
            source = DenseImageSource(
                param.source,
                transform,
                root=param.root_folder,
                colour=param.is_color,
                size=(param.new_height, param.new_width) if param.new_height else None,
                crop=crop if any(crop) else None,
                random_crop=self.phase == "TRAIN",
                mirror=mirror,
                divide=param.label_divide_factor,
                shuffle=param.shuffle,
                seed=self.seed,
                rand_skip=param.rand_skip,
                bad=BadRecords(skip=settings.skip_bad),
            )
        except UserError as error:
            if str(error).startswith("layer "):
                raise
            self.fail(f"{where}.source", str(error))
        self._source = source
        self.record_shape = source.record_shape
        shapes: list[Shape] = [(param.batch_size, *source.shape)]
        shapes.append((param.batch_size, *source.label_shape))
        return self.stream(source.fill, shapes, threads=usable_cores())

    def limit_labels(self, top: int, labels: Labels) -> None:
        if top == 1:
            self._source.labels = labels
