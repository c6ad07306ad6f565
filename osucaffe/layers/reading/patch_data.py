"""Owns the layer PatchData, which cuts pairs of patches for super-resolution out of images."""

from __future__ import annotations

from ...backends.cores import usable_cores
from ...data.ahead.parallel_map import BadRecords
from ...data.databases.database import open_database
from ...data.pictures.transform import Transform
from ...data.streams.patches import PatchSource
from ...errors import UserError
from ..base import Shapes, register
from .feed import Stream


@register("PatchData")
class PatchData(Stream):
    """Patches of images from an LMDB at two resolutions (tops: low, high), turned at random."""

    tops = (2, 2)
    messages = ("patch_data_param", "transform_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.patch_data_param
        if not param.source:
            self.fail("patch_data_param.source", "is missing: set it to the folder of an LMDB")
        self.check_positive("patch_data_param", "batch_size", "scale", "patch_size")
        transform = Transform(self.param.transform_param, self.phase, self.fail)
        if transform.crop or transform.mirror or transform.has_mean_image:
            self.fail(
                "transform_param",
                "PatchData turns and mirrors by itself: give patch_size for crop_size, nothing for "
                "mirror, and mean_value for mean_file",
            )
        databases = []
        for field in ("source", "low_source"):
            try:
                path = getattr(param, field)
                databases.append(open_database(path) if path else None)
            except UserError as error:
                self.fail(f"patch_data_param.{field}", str(error))
        high, low = databases
        assert high is not None
        try:
            source = PatchSource(
                high,
                low,
                transform,
                scale=param.scale,
                side=param.patch_size,
                random=self.phase == "TRAIN",
                seed=self.seed,
                bad=BadRecords(skip=self.data_config.skip_bad),
            )
        except UserError as error:
            if str(error).startswith("layer "):  # the transform's errors name the layer already
                raise
            self.fail("patch_data_param.source", str(error))
        self.records = len(source)
        shapes: Shapes = [(param.batch_size, *shape) for shape in source.shapes]
        return self.stream(
            source.fill,
            shapes,
            threads=usable_cores(),
            depth=param.prefetch,
            decodes=all(each.shared for each in databases if each),
        )
