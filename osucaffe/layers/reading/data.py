"""The layers that read data sets: Data, ImageData, ImageFloatData, WindowData, PatchData,
HDF5Data."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from ...backends.cores import usable_cores
from ...backends.uploads import available_memory
from ...data.databases.database import open_database
from ...data.resident.memory_limit import SHARE
from ...data.streams.hdf5 import Hdf5Source
from ...data.streams.image_list import ImageListSource, NumberedImageSource
from ...data.streams.patches import PatchSource
from ...data.streams.source import DatumSource
from ...data.streams.windows import WindowSource
from ...labels import Labels
from ..base import Blobs, Program, Shapes, register
from .feed import Stream
from .images import Images

if TYPE_CHECKING:
    from ...data.resident.cache import CachedBatches

_COPYING = 4


@register("Data")
class Data(Images):
    """Images (and labels, if there is a second top) from an LMDB, transformed and prefetched."""

    tops = (1, 2)
    messages = ("data_param", "transform_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.data_param
        self.require_source("data_param", "set it to the folder of a database", "images")
        transform = self.read_transform()
        with self.blame("data_param.source"):
            database = open_database(param.source)
        source = DatumSource(
            database,
            transform,
            seed=self.seed,
            rand_skip=param.rand_skip,
            block=self.block(param.shuffle),
            bad=self.bad_records,
            raw=self.takes_raw,
        )
        # A few threads copy raw records as fast as the memory can; what takes long, all cores do.
        slow = source.encoded or transform.augmentation is not None
        return self.images(
            source,
            transform,
            batch=param.batch_size,
            threads=usable_cores() if slow else min(_COPYING, usable_cores()),
            depth=param.prefetch,
            decodes=slow and database.shared,
        )


@register("ImageData")
class ImageData(Images):
    """Images and labels from a list of image files, resized, transformed and prefetched."""

    tops = (2, 2)
    messages = ("image_data_param", "transform_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.image_data_param
        self.require("image_data_param", source="name a file with lines NAME LABEL")
        self.check_positive("image_data_param", "batch_size")
        options, transform = self.list_options("image_data_param"), self.read_transform()
        with self.blame("image_data_param.source"):
            source = ImageListSource(
                param.source, transform, colour=param.is_color, raw=self.takes_raw, **options
            )
        return self.images(source, transform, batch=param.batch_size)


@register("ImageFloatData")
class ImageFloatData(Stream):
    """Images from a list and label_dim numbers for each, the places of landmarks, say.

    hard_sample: lines end with a weight, a third top. with_heatmap: a gray image of the same name
    in heatmap_dir is one more channel.
    """

    tops = (2, 3)
    messages = ("image_float_data_param", "image_data_param", "transform_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param, numbers = self.param.image_data_param, self.param.image_float_data_param
        self.require("image_data_param", source="name a file with lines NAME NUMBER ...")
        self.check_positive("image_data_param", "batch_size")
        self.check_positive("image_float_data_param", "label_dim")
        for field in "crop_size", "mirror":
            if getattr(self.param.transform_param, field):
                self.fail(f"transform_param.{field}", "cannot be set: it would move the landmarks")
        if len(self.param.top) > 2 and not numbers.hard_sample:
            self.fail("top", "needs 2: a third one is for the weights of hard_sample")
        size, transform = self.read_size("image_data_param"), self.read_transform()
        with self.blame("image_data_param.source"):
            source = NumberedImageSource(
                param.source,
                transform,
                numbers=numbers.label_dim + numbers.hard_sample,
                root=param.root_folder,
                maps=numbers.heatmap_dir if numbers.with_heatmap else None,
                colour=param.is_color,
                size=size,
                block=self.block(param.shuffle),
                seed=self.seed,
                rand_skip=param.rand_skip,
                bad=self.bad_records,
            )
        self.record_shape, batch = source.record_shape, param.batch_size
        shapes: Shapes = [(batch, *source.shape), (batch, numbers.label_dim), (batch,)]
        return self.stream(source, shapes, threads=usable_cores(), decodes=True)

    def limit_labels(self, top: int, labels: Labels) -> None:
        """Its numbers are not labels."""


@register("WindowData")
class WindowData(Stream):
    """Windows of images that a window file names, foreground and background mixed."""

    tops = (2, 2)
    messages = ("window_data_param", "transform_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param, transform = self.param.window_data_param, self.read_transform()
        self.require_source("window_data_param", "name a window file", "windows")
        self.require("transform_param", crop_size="every window is warped to it")
        if param.crop_mode not in ("warp", "square"):
            self.fail("window_data_param.crop_mode", f'"{param.crop_mode}": use warp or square')
        if 2 * param.context_pad >= transform.crop:
            text = f"{param.context_pad} on both sides leaves nothing of crop_size {transform.crop}"
            self.fail("window_data_param.context_pad", text)
        if not 0 <= param.fg_fraction <= 1:
            self.fail("window_data_param.fg_fraction", f"{param.fg_fraction} is not in 0..1")
        with self.blame("window_data_param.source"):
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
        shapes: Shapes = [(param.batch_size, *source.shape), (param.batch_size,)]
        return self.stream(source, shapes, decodes=not param.cache_images)

    def limit_labels(self, top: int, labels: Labels) -> None:
        if top == 1:
            self._source.check_labels(labels)


@register("PatchData")
class PatchData(Stream):
    """Patches of images from an LMDB at two resolutions (tops: low, high), turned at random."""

    tops = (2, 2)
    messages = ("patch_data_param", "transform_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param, transform = self.param.patch_data_param, self.read_transform()
        self.require("patch_data_param", source="set it to the folder of an LMDB")
        self.check_positive("patch_data_param", "batch_size", "scale", "patch_size")
        if transform.crop or transform.mirror or transform.has_mean_image:
            self.fail(
                "transform_param",
                "PatchData turns and mirrors by itself: give patch_size for crop_size, nothing for "
                "mirror, and mean_value for mean_file",
            )
        with self.blame("patch_data_param.source"):
            high = open_database(param.source)
        with self.blame("patch_data_param.low_source"):
            low = open_database(param.low_source) if param.low_source else None
        with self.blame("patch_data_param.source"):
            source = PatchSource(
                high,
                low,
                transform,
                scale=param.scale,
                side=param.patch_size,
                random=self.phase == "TRAIN",
                seed=self.seed,
                bad=self.bad_records,
            )
        shapes: Shapes = [(param.batch_size, *shape) for shape in source.shapes]
        shared = high.shared and (low is None or low.shared)
        return self.stream(source, shapes, depth=param.prefetch, decodes=shared)


@register("HDF5Data")
class HDF5Data(Stream):
    """Rows of HDF5 files that a list names: each top is the data set of its name."""

    tops = (1, None)
    _cached: CachedBatches | None = None
    messages = ("hdf5_data_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.hdf5_data_param
        if self.param.HasField("transform_param"):
            self.fail("transform_param", "HDF5Data does not transform: write what the net needs")
        self.require_source("hdf5_data_param", "name a file that lists HDF5 files", "rows")
        block = 0 if param.shuffle else self.block(False)
        with self.blame("hdf5_data_param.source"):
            source = Hdf5Source(
                param.source,
                self.param.top,
                shuffle=param.shuffle,
                block=block,
                seed=self.seed,
            )
        shapes: Shapes = [(param.batch_size, *shape) for shape in source.shapes]
        nbytes = 4 * len(source) * sum(map(math.prod, source.shapes))
        if block and nbytes > SHARE * available_memory():
            text = f"--shuffle keeps all its rows in memory, and {nbytes:,} bytes are too many"
            self.fail("hdf5_data_param.source", f"{text}: set hdf5_data_param.shuffle instead")
        if not self.stays_on_device(nbytes):
            return self.stream(source, shapes, threads=1)
        self._source, self.records = source, len(source)
        parts, fed = ([(shape, "float32") for shape in of] for of in (source.shapes, shapes))
        pipeline = functools.partial(self.pipeline, threads=1)
        options = {"batch": param.batch_size, "width": 1, "fed": fed, "pipeline": pipeline}
        self._cached = self.cached(source, parts, **options)
        return shapes

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        if self._cached is None:
            super().forward(program, bottom, top)
            return
        rows = self.record_next(program, self._cached)
        for part, blob in zip(self._cached.parts, top, strict=True):
            program.cached_rows(part, rows, blob.data)

    def limit_labels(self, top: int, labels: Labels) -> None:
        self._source.labels[top] = labels
