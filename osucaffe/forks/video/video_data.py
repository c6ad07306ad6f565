"""The layer VideoData of TSN, which reads clips of videos whose frames lie in folders."""

from __future__ import annotations

from ...layers.base import Shapes, register
from ...layers.reading.feed import Stream
from .video_frames import Crops, VideoFrameSource

RATIOS = (1.0, 0.875, 0.75, 0.66)
"""What crops of several scales measure where scale_ratios does not say it."""
PATTERNS = {"RGB": "image_%04d.jpg", "FLOW": "flow_%c_%04d.jpg"}


@register("VideoData")
class VideoData(Stream):
    """Clips of videos from a list FOLDER FRAMES LABEL, frames after one another as channels (TSN).

    num_segments clips of new_length frames: at random places of the segments in TRAIN, in their
    middles in TEST. transform_param: multi_scale, scale_ratios, max_distort, fix_crop,
    more_fix_crop say how crops are drawn in TRAIN; is_flow inverts mirrored horizontal flow.
    """

    tops = (2, 2)
    messages = ("video_data_param", "transform_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param, transformation = self.param.video_data_param, self.param.transform_param
        where = "video_data_param"
        self.require(where, source="name a file with lines FOLDER FRAMES LABEL")
        self.check_positive(where, "batch_size", "new_length", "num_segments")
        options = self.list_options(where)
        modality = param.Kind.Name(param.modality)
        if modality not in PATTERNS:
            self.fail(f"{where}.modality", f"{modality} is not supported: RGB and FLOW are")
        pattern = param.name_pattern or PATTERNS[modality]
        try:
            _ = pattern % (("x", 1) if modality == "FLOW" else 1)
        except (TypeError, ValueError):
            like = PATTERNS[modality]
            self.fail(
                f"{where}.name_pattern",
                f'"{pattern}" names no frames: use a pattern such as "{like}"',
            )
        transform = self.read_transform("crop_size", "mirror")  # which are drawn here
        with self.blame(f"{where}.source"):
            source = VideoFrameSource(
                param.source,
                transform,
                pattern=pattern,
                flow=modality == "FLOW",
                segments=param.num_segments,
                length=param.new_length,
                crops=self._crops(),
                mirror=transformation.mirror,
                invert=transformation.is_flow,
                random=self.phase == "TRAIN",
                **options,
            )
        shapes: Shapes = [(param.batch_size, *source.shape), (param.batch_size,)]
        return self.stream(source, shapes, decodes=True)

    def _crops(self) -> Crops | None:
        """How crops are drawn, if there are any."""
        param = self.param.transform_param
        if not param.crop_size:
            if param.multi_scale or param.fix_crop:
                self.fail("transform_param.crop_size", "is missing: crops get this size")
            return None
        ratios: tuple[float, ...] = ()
        if param.multi_scale and self.phase == "TRAIN":
            ratios = tuple(param.scale_ratios) or RATIOS
        if (distort := param.max_distort) < 0:
            self.fail("transform_param.max_distort", "must be at least 0")
        return Crops(param.crop_size, ratios, distort, param.fix_crop, param.more_fix_crop)
