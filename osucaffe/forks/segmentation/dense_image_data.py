"""Layers that read images, and a label for each of their pixels, that a list names."""

from __future__ import annotations

from typing import Any

from ...layers.base import Shapes, register
from ...layers.reading.feed import DynamicFeed
from .dense_images import DenseImageSource, SizedImageSource, Sizes, read_edges, read_gray

SHARED_WITH_LABELS = ("crop_size", "crop_height", "crop_width", "mirror", "scale_factors")


class PixelLabels(DynamicFeed):
    """What these layers share: `where` is the field that holds their settings."""

    tops = (2, 2)
    where = "image_data_param"
    messages = ("image_data_param", "transform_param")
    _source: DenseImageSource | None = None

    def open(self, **options: Any) -> Shapes:
        """Begin the stream; options: of the source. Returns the shapes of the tops."""
        source = self._source
        if source is None:
            self._source = source = self._read_list(options)
            batch = getattr(self.param, self.where).batch_size
            shapes = [(batch, *source.shape), (batch, *source.label_shape), (batch, 1, 1, 2)]
            self.shapes = shapes[: len(self.param.top)]
            self.record_shape, self.records = source.record_shape, len(source)
        if self.reshapes:
            return self.shapes
        return self.stream(source, self.shapes, decodes=True)

    def _read_list(self, options: dict[str, Any]) -> DenseImageSource:
        param = getattr(self.param, self.where)
        self.require(self.where, source="name a file with lines IMAGE LABELS")
        self.check_positive(self.where, "batch_size")
        options |= self.list_options(self.where) | {"colour": param.is_color}
        # Crops and mirror images are labels' matter too: the transform has the rest.
        mean_file = param.mean_file if self.where == "dense_image_data_param" else ""
        transform = self.read_transform(*SHARED_WITH_LABELS, mean_file=mean_file)
        with self.blame(f"{self.where}.source"):
            return DenseImageSource(param.source, transform, **options)

    def crop_of(self, param: Any, where: str) -> tuple[int, int]:
        """The height and width that a message gives for crops, 0 and 0 where it gives none."""
        if bool(param.crop_height) != bool(param.crop_width):
            self.fail(where, "give both crop_height and crop_width, or neither")
        return param.crop_height, param.crop_width


@register("DenseImageData")
class DenseImageData(PixelLabels):
    """Images, and a label for each of their pixels, from a list of pairs of files (SegNet, ENet).

    Both are resized (labels to the nearest), cropped and mirrored alike. label_divide_factor:
    labels are so much smaller than the images.
    """

    where = "dense_image_data_param"
    messages = ("dense_image_data_param", "transform_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param, size = self.param.dense_image_data_param, self.param.transform_param.crop_size
        crop = self.crop_of(param, self.where)
        self.check_positive(self.where, "label_divide_factor")
        if (any(crop) or size) and param.label_divide_factor > 1:
            self.fail(f"{self.where}.label_divide_factor", "cannot be given with a crop")
        return self.open(
            crop=crop if any(crop) else (size, size) if size else None,
            random_crop=self.phase == "TRAIN",
            mirror=param.mirror or self.param.transform_param.mirror,
            divide=param.label_divide_factor,
        )


@register("ImageSegData")
class ImageSegData(PixelLabels):
    """Images and labels of their pixels from a list, in random sizes and crops (DeepLab, PSPNet).

    label_type: PIXEL, an image of labels; IMAGE, a number for all pixels; NONE, ignore_label for
    all. Images are scaled by one of scale_factors; those smaller than the crop are
    padded by the mean and ignore_label. A third top: how much of height and width each image fills.
    """

    tops = (2, 3)

    def setup(self, bottom: Shapes) -> Shapes:
        param, transformation = self.param.image_data_param, self.param.transform_param
        crop, size = self.crop_of(transformation, "transform_param"), transformation.crop_size
        if any(crop) and size:
            self.fail("transform_param", "give crop_size, or crop_height and crop_width, not both")
        crop = (size, size) if size else crop
        scales = list(transformation.scale_factors)
        if scales and min(scales) <= 0:
            self.fail("transform_param.scale_factors", "must be above 0")
        if scales and not any(crop):
            self.fail("transform_param.scale_factors", "need a crop, which gives all one size")
        if transformation.mean_file:
            self.fail("transform_param.mean_file", "cannot be given here: set mean_value")
        return self.open(
            kind=param.LabelType.Name(param.label_type),
            scales=scales,
            crop=crop if any(crop) else None,
            random_crop=self.phase == "TRAIN",
            unknown=param.ignore_label,
            mirror=transformation.mirror,
        )


@register("ImageLabelmapData")
class ImageLabelmapData(PixelLabels):
    """Images and maps of their edges, or of what stands out, from a list of pairs of files (HED).

    Maps are 1 where they are brighter than half; with `normalize: false` (DSS) they stay as they
    are. Both are resized, cropped and mirrored alike. Without new_height or a crop, and with a
    batch of one, images may have any size.
    """

    def setup(self, bottom: Shapes) -> Shapes:
        param, size = self.param.image_data_param, self.param.transform_param.crop_size
        raw = param.HasField("normalize") and not param.normalize
        self.reshapes = param.batch_size == 1 and not (size or param.new_height)
        return self.open(
            crop=(size, size) if size else None,
            random_crop=True,
            mirror=self.param.transform_param.mirror,
            read=read_gray if raw else read_edges,
            varies=self.reshapes,
        )


@register("SegData")
class SegData(PixelLabels):
    """Images one by one, and a label for each of their pixels, from a list of pairs of files (TSN).

    Each is scaled by a factor between two scale_ratios and cropped, at random, to sides that are
    multiples of stride and at most upper_size, or upper_height and upper_width. balance: crops of
    one label alone are avoided.
    """

    where = "seg_data_param"
    messages = ("seg_data_param", "transform_param")
    reshapes = True

    def setup(self, bottom: Shapes) -> Shapes:
        if self._source is None:
            self._source = source = self._open()
            self.record_shape, self.records = source.record_shape, len(source)
            with self.blame(f"{self.where}.source"):
                self.shapes = [each[None].shape for each in source.one(0)]
        return self.shapes

    def _open(self) -> SizedImageSource:
        param, transformation = self.param.seg_data_param, self.param.transform_param
        self.require(self.where, source="name a file with lines IMAGE LABELS")
        self.check_positive("transform_param", "stride")
        for field in "crop_size", "mean_file":
            if getattr(transformation, field):
                self.fail(f"transform_param.{field}", "cannot be given here: sizes differ")
        ratios = list(transformation.scale_ratios) or [1.0, 1.0]
        if len(ratios) != 2 or not 0 < ratios[0] <= ratios[1]:
            self.fail("transform_param.scale_ratios", f"{ratios}: give the least and the greatest")
        most = None
        if transformation.HasField("upper_size"):
            most = (transformation.upper_size,) * 2
        elif transformation.HasField("upper_height") and transformation.HasField("upper_width"):
            most = (transformation.upper_height, transformation.upper_width)
        sizes = Sizes(ratios[0], ratios[1], transformation.stride, most, param.balance)
        with self.blame(f"{self.where}.source"):
            return SizedImageSource(
                param.source, self.read_transform("mirror"), sizes, root=param.root_dir,
                mirror=transformation.mirror, block=self.block(param.shuffle), seed=self.seed,
                bad=self.bad_records,
            )  # fmt: skip
