"""Owns the layer ImageData, which reads image files that a list names."""

from __future__ import annotations

from ...backends.cores import usable_cores
from ...data.ahead.parallel_map import BadRecords
from ...data.pictures.transform import Transform
from ...data.streams.image_list import ImageListSource
from ...errors import UserError
from ..base import Shapes, register
from .images import Images


@register("ImageData")
class ImageData(Images):
    """Images and labels from a list of image files, resized, transformed and prefetched."""

    tops = (2, 2)
    messages = ("image_data_param", "transform_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.image_data_param
        if not param.source:
            self.fail("image_data_param.source", "is missing: name a file with lines NAME LABEL")
        self.check_positive("image_data_param", "batch_size")
        if bool(param.new_height) != bool(param.new_width):
            self.fail("image_data_param", "give both new_height and new_width, or neither")
        transform = Transform(self.param.transform_param, self.phase, self.fail)
        try:
            source = ImageListSource(
                param.source,
                transform,
                root=param.root_folder,
                colour=param.is_color,
                size=(param.new_height, param.new_width) if param.new_height else None,
                shuffle=param.shuffle,
                seed=self.seed,
                rand_skip=param.rand_skip,
                bad=BadRecords(skip=self.data_config.skip_bad),
                raw=self.takes_raw,
            )
        except UserError as error:
            # The transform's own errors name the layer already.
            if str(error).startswith("layer "):
                raise
            self.fail("image_data_param.source", str(error))
        return self.images(source, transform, batch=param.batch_size, threads=usable_cores())
