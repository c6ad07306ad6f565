"""The data layers of MS-CNN and Cascade R-CNN: images of a list, perhaps cut about objects,
and maps of these objects.

They bring what zhaoweicai/mscnn's image_gt_data_layer.cpp and zhaoweicai/cascade-rcnn's
detection_data_layer.cpp and eval_data_layer.cpp do; what is drawn at random differs.
"""

from __future__ import annotations

import math
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np

from ...data.pictures.image import decode_content, read_content, whole
from ...layers.base import Arrays, Count, Shape, Shapes, register
from ...layers.reading.feed import DynamicFeed
from ..augment import distort
from .fields import Rules, field_maps
from .object_crops import Picture, choose_centre, place, zoomed
from .object_lists import Listed, order_of, read_object_list


class ObjectData(DynamicFeed):
    """Batches of a list of images, made one ahead by a thread. A subclass makes them."""

    reshapes = True
    tops: Count = (1, None)
    messages: tuple[str, ...]
    difficult = True
    shuffle = ""
    group = 1
    repeats = 1
    one_by_one = True
    _images: list[Listed] | None = None

    @property
    def setting(self) -> Any:
        """The message that comes first."""
        return getattr(self.param, self.messages[0])

    def setup(self, bottom: Shapes) -> Shapes:
        if self._images is None:
            self._images = self._open()
            self.records, self.batch = len(self._images), int(self.setting.batch_size)
            self._pool = ThreadPoolExecutor(1)
            self._ahead: dict[int, Future[Arrays]] = {}
            self.shapes = [item.shape for item in self.make(0)]
        tops = len(self.param.top)
        if tops != len(self.shapes):
            self.fail("top", f"needs {len(self.shapes)}, but the net gives it {tops}")
        return self.shapes

    def make(self, position: int) -> Arrays:
        """The batch at a position of the stream."""
        raise NotImplementedError

    def _open(self) -> list[Listed]:
        """The images of the list."""
        name = self.messages[0]
        self.require_source(name, "name a list", "images")
        if getattr(self.setting, "coord_num", 4) != 4:
            self.fail(f"{name}.coord_num", "must be 4")
        transform = self.param.transform_param
        if transform.mean_file or getattr(self.setting, "mean_file", ""):
            self.fail("transform_param.mean_file", "is not read here: give mean_value")
        if len(transform.mean_value) not in (0, 1, 3):
            self.fail("transform_param.mean_value", "give one, or one for each of 3 channels")
        self.mean = np.array(transform.mean_value or [0.0], np.float32)
        with self.blame(f"{name}.source"):
            root = self.setting.root_folder
            images = read_object_list(self.setting.source, root, difficult=self.difficult)
        if self.repeats > 1:  # those with an object that counts come as often
            images = [
                item for item in images
                for _ in range(self.repeats if (item.objects[:, 1] == 0).any() else 1)
            ]  # fmt: skip
        cached = getattr(self.setting, "cache_images", False)
        self._content = lru_cache(None)(read_content) if cached else read_content
        return images

    def picture(self, position: int) -> tuple[Picture, np.random.Generator]:
        """The image at a position, and what to draw for it."""
        assert self._images is not None
        epoch, at = divmod(position, len(self._images))
        order = order_of(self._images, self.shuffle, self.seed, epoch, self.group)
        listed = self._images[order[at]]
        image = decode_content(listed.path, self._content(listed.path), True)
        generator = np.random.default_rng([self.seed, self.key, position])
        return Picture(np.array(image), listed.objects, listed.regions), generator

    def pixels(self, part: np.ndarray, scale: float) -> np.ndarray:
        """(channels, height, width), less the mean, scaled."""
        return ((part.astype(np.float32) - self.mean) * scale).transpose(2, 0, 1)

    # -- the stream ------------------------------------------------------------------------------

    def one(self, position: int) -> Arrays:
        made = self._ahead.pop(position, None) or self._pool.submit(self.make, position)
        arrays, following = made.result(), position + self.ranks * self.batch
        self._ahead = {following: self._pool.submit(self.make, following)}
        return arrays

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._ahead = {}


def join_objects(objects: list[np.ndarray], columns: int, nothing: tuple[int, ...]) -> np.ndarray:
    """Rows (R, columns, 1, 1) of image, box, label, whether ignored (and difficult)."""
    rows = [
        np.concatenate([np.full((len(part), 1), i), part[:, 3:], part[:, :3]], axis=1)[:, :columns]
        for i, part in enumerate(objects)
    ]
    every = np.concatenate(rows)
    return (every if len(every) else np.array([nothing])).reshape(-1, columns, 1, 1)


@register("EvalData")
class EvalData(ObjectData):
    """Whole images of a list, their objects and (a third top) their sizes (Cascade R-CNN)."""

    tops: Count = (2, 3)
    messages = ("eval_data_param", "transform_param")

    def make(self, position: int) -> Arrays:
        pictures = [self.picture(position + i)[0] for i in range(self.setting.batch_size)]
        pictures = [item.resized(*self._size(item.image.shape)) for item in pictures]
        scale = self.param.transform_param.scale
        images = [self.pixels(item.image, scale) for item in pictures]
        if len({item.shape for item in images}) > 1:
            self.fail("eval_data_param.batch_size", "must be 1 where images differ in size")
        sizes = np.reshape([item.shape[1:] for item in images], (-1, 2, 1, 1))
        rows = join_objects([item.objects for item in pictures], 8, (-1,) * 8)
        return [np.stack(images), rows, sizes][: len(self.param.top)]

    def _size(self, shape: Shape) -> tuple[int, int]:
        """Height and width of an image, in multiples of 32."""
        param, (height, width) = self.setting, shape[:2]
        if param.resize_width and param.resize_height:
            height, width = param.resize_height, param.resize_width
        elif param.short_size and param.long_size:
            scale = param.short_size / min(height, width)
            height, width = (min(whole(n * scale), param.long_size) for n in (height, width))
        return max(32, whole(height / 32) * 32), max(32, whole(width / 32) * 32)


class TrainingData(ObjectData):
    """Images of one size, maps of fields (`fields.py`) and, if asked for, rows of objects."""

    rules: Rules
    columns = 8
    nothing: tuple[int, ...] = (-1,) * 8
    scale = 1.0

    def extents(self, picture: Picture, ratio: float) -> tuple[int, int]:
        """Height and width of a batch that begins with this picture."""
        raise NotImplementedError

    def resized(self, picture: Picture, ratio: float) -> Picture:
        raise NotImplementedError

    def zoom(self, box: np.ndarray | None, generator: np.random.Generator) -> np.ndarray:
        """By how much width and height are to grow about an object."""
        raise NotImplementedError

    def read_fields(self, strides: list[int]) -> list[tuple[int, int, int]]:
        param = self.setting
        if not len(strides) == len(param.field_w) == len(param.field_h):
            field = f"{self.messages[0]}.field_w"
            self.fail(field, "must be as many as field_h, and as the strides")
        return list(zip(param.field_w, param.field_h, strides, strict=True))

    def ratio(self, position: int) -> float:
        """What the sizes of a batch are multiplied by."""
        return 1.0

    def make(self, position: int) -> Arrays:
        param, ratio = self.setting, self.ratio(position)
        extents, images, maps, objects = None, list[np.ndarray](), [], []
        for i in range(param.batch_size):
            picture, generator = self.picture(position + i)
            picture = self.resized(self.varied(picture, generator), ratio)
            extents = extents or self.extents(picture, ratio)
            chosen, centre = choose_centre(picture, extents, generator)
            box = None if chosen is None else picture.objects[chosen, 3:]
            picture, centre = zoomed(picture, centre, self.zoom(box, generator))
            placed = place(picture, centre, extents, generator)
            self._ignore(placed.picture.objects, extents)
            x, y, width, height = placed.inside
            image = np.zeros((placed.part.shape[2], *extents), np.float32)
            image[:, y : y + height, x : x + width] = self.pixels(placed.part, self.scale)
            images.append(image)
            maps.append(field_maps(placed, extents, self.rules))
            objects.append(placed.picture.objects)
        arrays = [np.stack(images), *(np.stack(item) for item in zip(*maps, strict=True))]
        if param.output_gt_boxes:
            arrays.append(join_objects(objects, self.columns, self.nothing))
        return arrays

    def varied(self, picture: Picture, generator: np.random.Generator) -> Picture:
        """Of other colours, and perhaps mirrored."""
        param = self.setting
        if "distort_param" in param.DESCRIPTOR.fields_by_name and param.HasField("distort_param"):
            picture = picture._replace(image=distort(picture.image, param.distort_param, generator))
        if self.param.transform_param.mirror and generator.integers(2):
            picture = picture.mirrored()
        return picture

    def _ignore(self, objects: np.ndarray, extents: tuple[int, int]) -> None:
        """Mark those that are too small, or whose middle is not in the image."""
        middles = (objects[:, 3:5] + objects[:, 5:]) / 2
        away = (middles < 0).any(axis=1) | (middles >= extents[::-1]).any(axis=1)
        sizes = objects[:, 5:] - objects[:, 3:5] + 1
        least = [self.setting.min_gt_width, self.setting.min_gt_height]
        objects[away | (sizes < least).any(axis=1), 1] = 1


@register("ImageGtData")
class ImageGtData(TrainingData):
    """Images of a list, cut about an object, and maps of what fields match (MS-CNN)."""

    messages = ("image_gt_data_param", "transform_param")
    difficult = False
    columns = 7
    nothing = (0, 1, 1, 2, 2, 1, 1)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.image_gt_data_param
        self.shuffle = "random" if param.shuffle else ""
        self.reshapes = param.output_gt_boxes or not (param.resize_width or param.crop_width)
        self.repeats, self.scale = max(1, param.fg_img_multiple), param.scale
        fields = self.read_fields(list(param.downsample_rate))
        self.rules = Rules(fields, edges=True, foreground=param.fg_threshold)
        return super().setup(bottom)

    def extents(self, picture: Picture, ratio: float) -> tuple[int, int]:
        param, (height, width) = self.setting, picture.image.shape[:2]
        return (param.crop_height or height, param.crop_width or width)

    def resized(self, picture: Picture, ratio: float) -> Picture:
        param = self.setting
        if not (param.resize_width and param.resize_height):
            return picture
        return picture.resized(param.resize_height, param.resize_width)

    def zoom(self, box: np.ndarray | None, generator: np.random.Generator) -> np.ndarray:
        """By half octaves between the scales, from the object's own on."""
        param, scale = self.setting, np.ones(2)
        multiple = param.do_multiple_scale and param.min_scale and param.max_scale
        if box is None or not multiple or not generator.integers(2):
            return scale
        steps = np.arange(whole(2 * math.log2(param.max_scale / param.min_scale) + 1)) / 2
        width, height = np.maximum(box[2:] - box[:2], 1e-3)
        areas = (param.min_scale * 2.0**steps) ** 2
        near = np.minimum(areas, width * height) / np.maximum(areas, width * height)
        scale *= 2.0 ** (generator.choice(steps) - steps[near.argmax()])
        turned = param.HasField("min_whaspect") and param.HasField("max_whaspect")
        if turned and generator.integers(2):
            count = max(1, whole((param.max_whaspect - param.min_whaspect) / 0.05))
            aspect = generator.integers(count) * 0.05 + param.min_whaspect
            growth = aspect / (width / height)
            axis = int(generator.integers(2))
            factor = (growth, 1 / growth)[axis]
            target = (width, height)[axis] * scale[axis] * factor
            if param.min_scale * 0.8 <= target <= param.max_scale * 1.2:
                scale[axis] *= factor
        return scale


@register("DetectionData")
class DetectionData(TrainingData):
    """Images of a list, cut about an object, and maps of what fields match (Cascade R-CNN)."""

    messages = ("detection_data_param", "transform_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param, name = self.param.detection_data_param, "detection_data_param"
        resized = param.resize_width and param.resize_height
        fixed = resized or (param.crop_width and param.crop_height)
        self.reshapes = param.output_gt_boxes or not fixed
        self.shuffle = param.shuffle if param.HasField("shuffle") else ""
        if self.shuffle not in ("", "random", "random_aspect", "random_mix_aspect"):
            self.fail(f"{name}.shuffle", "must be random, random_aspect or random_mix_aspect")
        self.group, self.scale = max(1, param.mix_group_size), self.param.transform_param.scale
        has = param.HasField
        self.rules = Rules(
            self.read_fields(list(param.stride)), edges=False, foreground=param.fg_threshold,
            of_no_interest=param.ignore_fg_threshold, pick_up=param.pickup_iou_thr,
            margin=param.anchor_ignore_margin_ratio if has("anchor_ignore_margin_ratio") else None,
            least_inside=param.anchor_ignore_iou_thr if has("anchor_ignore_iou_thr") else None,
        )  # fmt: skip
        return super().setup(bottom)

    def ratio(self, position: int) -> float:
        ratios = self.setting.template_ratio
        draw = np.random.default_rng([self.seed, self.key, position, 1])
        return float(draw.choice(ratios)) if ratios else 1.0

    def extents(self, picture: Picture, ratio: float) -> tuple[int, int]:
        param, (height, width) = self.setting, picture.image.shape[:2]
        if param.crop_width and param.crop_height:
            return param.crop_height, param.crop_width
        if param.crop_short_size and param.crop_long_size:
            short, long = param.crop_short_size, param.crop_long_size
        elif param.resize_width and param.resize_height:
            return param.resize_height, param.resize_width
        elif param.short_size and param.long_size:
            sides = param.short_size, param.long_size
            short, long = (whole(side * ratio / 32) * 32 for side in sides)
        else:
            return height, width
        return (long, short) if height >= width else (short, long)

    def resized(self, picture: Picture, ratio: float) -> Picture:
        param, (height, width) = self.setting, picture.image.shape[:2]
        if param.resize_width and param.resize_height:
            return picture.resized(param.resize_height, param.resize_width)
        scale = param.resize_ratio or 1.0
        if not param.resize_ratio and param.short_size and param.long_size:
            scale = whole(param.short_size * ratio / 32) * 32 / min(height, width)
        return picture.resized(whole(height * scale), whole(width * scale))

    def zoom(self, box: np.ndarray | None, generator: np.random.Generator) -> np.ndarray:
        """By any factor between two, or between those that give the object two sizes."""
        param, has = self.setting, self.setting.HasField
        if has("low_scale_ratio") and has("high_scale_ratio"):
            limits = [param.low_scale_ratio, param.high_scale_ratio]
        elif has("min_scale") and has("max_scale"):
            size = 0.0 if box is None else math.sqrt(np.prod(box[2:] - box[:2] + 1))
            limits = [param.min_scale / size, param.max_scale / size] if size else [2.0, 2.0]
        else:
            return np.ones(2)
        if generator.random() >= param.multiscale_prob:
            return np.ones(2)
        scale = np.full(2, 2 ** generator.uniform(*np.log2(limits)))
        if has("min_whaspect") and has("max_whaspect"):
            aspects = np.log2([param.min_whaspect, param.max_whaspect])
            root = math.sqrt(2 ** generator.uniform(*aspects))
            scale *= [root, 1 / root]
        return scale
