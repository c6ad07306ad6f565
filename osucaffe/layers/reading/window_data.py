"""Owns the layer WindowData, which cuts windows out of images, as R-CNN is trained."""

from __future__ import annotations

from ...backends.cores import usable_cores
from ...data.pictures.transform import Transform
from ...data.streams.windows import WindowSource
from ...errors import UserError
from ...labels import Labels
from ..base import Shapes, register
from .feed import Stream


@register("WindowData")
class WindowData(Stream):
    """Windows of images that a window file names, foreground and background mixed."""

    tops = (2, 2)
    messages = ("window_data_param", "transform_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.window_data_param
        transform = Transform(self.param.transform_param, self.phase, self.fail)
        if not param.source:
            self.fail("window_data_param.source", "is missing: name a window file")
        if not param.batch_size:
            self.fail("window_data_param.batch_size", "is missing: set it to a batch's windows")
        if not transform.crop:
            self.fail("transform_param.crop_size", "is missing: every window is warped to it")
        if param.crop_mode not in ("warp", "square"):
            self.fail("window_data_param.crop_mode", f'"{param.crop_mode}": use warp or square')
        if 2 * param.context_pad >= transform.crop:
            self.fail(
                "window_data_param.context_pad",
                f"{param.context_pad} on both sides leaves nothing of crop_size {transform.crop}",
            )
        if not 0 <= param.fg_fraction <= 1:
            self.fail("window_data_param.fg_fraction", f"{param.fg_fraction} is not in 0..1")
        try:
            source = WindowSource(
                param.source,
                transform,
                batch_size=param.batch_size,
                foreground=param.fg_threshold,
                background=param.bg_threshold,
                fraction=param.fg_fraction,
                context=param.context_pad,
                square=param.crop_mode == "square",
                cache=param.cache_images,
                root=param.root_folder,
                seed=self.seed,
            )
        except UserError as error:
            if str(error).startswith("layer "):
                raise
            self.fail("window_data_param.source", str(error))
        self._source, self.records = source, len(source)
        shapes: Shapes = [(param.batch_size, *source.shape), (param.batch_size,)]
        return self.stream(
            source.fill, shapes, threads=usable_cores(), decodes=not param.cache_images
        )

    def limit_labels(self, top: int, labels: Labels) -> None:
        if top == 1:
            self._source.check_labels(labels)
