"""Owns the data layers of MS-CNN and Cascade R-CNN: images of a list, and maps of their objects.

They bring what zhaoweicai/mscnn's image_gt_data_layer.cpp and zhaoweicai/cascade-rcnn's
detection_data_layer.cpp and eval_data_layer.cpp do; what is drawn at random differs.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np

from ...data.databases.datum import decode_image
from ...data.pictures.object_crops import Picture, whole
from ...data.streams.object_lists import Listed, order_of, read_object_list
from ...errors import UserError
from ...files import read_file
from ..base import Arrays, Count, Shape, Shapes, register
from ..reading.feed import Varying


class ObjectData(Varying):
    """Batches of a list of images, made one ahead by a thread. A subclass makes them."""

    reshapes = True
    tops: Count = (1, None)
    setting: Any
    difficult = True
    shuffle = ""
    group = 1
    repeats = 1
    one_by_one = True
    _images: list[Listed] | None = None

    def setup(self, bottom: Shapes) -> Shapes:
        if self._images is None:
            self._images = self._open()
            self.records, self.batch = len(self._images), int(self.setting.batch_size)
            self._pool = ThreadPoolExecutor(1)
            self._ahead: dict[int, Future[Arrays]] = {}
            self.shapes = [each.shape for each in self.make(0)]
        if len(self.param.top) != len(self.shapes):
            self.fail("top", f"needs {len(self.shapes)}, but the net gives it "
                      f"{len(self.param.top)}")  # fmt: skip
        return self.shapes

    def make(self, position: int) -> Arrays:
        """The batch at a position of the stream."""
        raise NotImplementedError

    def _open(self) -> list[Listed]:
        """The images of the list."""
        name = next(name for name in self.messages or () if name != "transform_param")
        self.setting, self.name_of = getattr(self.param, name), name
        self.require(name, source="name a list", batch_size="set it to the images of one batch")
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
                each for each in images
                for _ in range(self.repeats if (each.objects[:, 1] == 0).any() else 1)
            ]  # fmt: skip
        cached = getattr(self.setting, "cache_images", False)
        self._content = lru_cache(None)(self._load) if cached else self._load
        return images

    def _load(self, path: str) -> bytes:
        try:
            return read_file(path)
        except OSError as error:
            raise UserError(f"cannot read image {path}: {error.strerror}") from error

    def picture(self, position: int) -> tuple[Picture, np.random.Generator]:
        """The image at a position, and what to draw for it."""
        assert self._images is not None
        epoch, at = divmod(position, len(self._images))
        order = order_of(self._images, self.shuffle, self.seed, epoch, self.group)
        listed = self._images[order[at]]
        try:
            image = decode_image(memoryview(self._content(listed.path)), True)
        except ValueError as error:
            raise UserError(f"cannot read image {listed.path}: {error}") from error
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
        np.concatenate([np.full((len(own), 1), i), own[:, 3:], own[:, :3]], axis=1)[:, :columns]
        for i, own in enumerate(objects)
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
        pictures = [each.resized(*self._size(each.image.shape)) for each in pictures]
        scale = self.param.transform_param.scale
        images = [self.pixels(each.image, scale) for each in pictures]
        if len({each.shape for each in images}) > 1:
            self.fail("eval_data_param.batch_size", "must be 1 where images differ in size")
        sizes = np.reshape([each.shape[1:] for each in images], (-1, 2, 1, 1))
        rows = join_objects([each.objects for each in pictures], 8, (-1,) * 8)
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
