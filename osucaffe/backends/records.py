"""How an image becomes input: crop, mirror, mean and scale, and what may decode it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from .tensor import Shape

Choice = tuple[int, int, int]
"""Of one record: the first row and column of the crop, and 1 where it is mirrored, else 0."""


class Part(NamedTuple):
    """Which part of an image enters which part of memory: pairs of rows and columns.

    extents: of the image. source, target: where the part begins in the image and in the memory.
    size: of the part.
    """

    extents: tuple[int, int]
    source: tuple[int, int]
    target: tuple[int, int]
    size: tuple[int, int]


class Filler(Protocol):
    """What writes records to a backend's own memory. Safe to use from several threads."""

    def allocate(self, shape: Shape) -> Any:
        """Memory for a batch, uint8 (N, ...): a flat array has its address."""

    def put(self, image: np.ndarray, place: int, batch: Any) -> None:
        """Write a record, or some after each other, to a place of the batch."""


class RecordCopier(Filler, Protocol):
    """What copies records from a file there, without the host."""

    def copy(self, begins: np.ndarray, batch: Any) -> bool:
        """Write the bytes of the file from each of these places on to the batch. False if the
        system does not allow it, and the batch holds nothing of use."""


class ImageDecoder(Filler, Protocol):
    """What decodes JPEGs there, overlapped with all else."""

    def decode(
        self,
        begins: np.ndarray,
        sizes: np.ndarray,
        parts: np.ndarray,
        places: np.ndarray,
        batch: Any,
    ) -> np.ndarray:
        """Write a part of each JPEG to its place of the batch, blue first. For each, whether it
        could be decoded.

        begins, sizes: addresses in the host's memory, and bytes. parts: a Part of each, (N, 4, 2),
        whose extents are those that the JPEG's head says.
        """

    def pin(self, memory: np.ndarray) -> None:
        """Let copies from this memory, which begins with a page and stays, be quick."""


class ScaledCrops(NamedTuple):
    """How photos become input: each is scaled to `extents`, and of these parts of it every pixel
    (red, green, blue) becomes mix @ pixel + offset.

    crops: int32 (parts, 3), the Choice of each. mix: float32 (channels, 3). offset: float32
    (channels, height, width), as a part has them.
    """

    extents: tuple[int, int]
    crops: np.ndarray
    mix: np.ndarray
    offset: np.ndarray


class PhotoScaler(Protocol):
    """What scales and crops photos in a backend's own memory."""

    def scale(self, records: np.ndarray) -> Any:
        """Begin to make the input of photos, uint8 (N, bytes), packed as pycaffe/packed.py does:
        flat memory of float32 (N, parts, channels, height, width), which the next call reuses.
        """


def transform_record(
    image: np.ndarray,
    out: np.ndarray,
    choice: Choice,
    *,
    mean: np.ndarray | None,
    scale: float | np.floating,
) -> None:
    """out = (crop of image - mean) * scale, mirrored perhaps, in one or two passes over out.

    image: (..., channels, height, width) of any type. out: the same of floats, with the extents of
    the crop. mean: (channels, 1, 1), or of an image's shape, from which the same crop is taken.
    """
    top, left, mirrored = choice
    height, width = out.shape[-2:]
    window = (..., slice(top, top + height), slice(left, left + width))
    image = image[window]
    if mean is not None and mean.shape[-2:] != (1, 1):
        mean = mean[window]
    target = out[..., ::-1] if mirrored else out
    if image.dtype == np.uint8 and (mirrored or image.strides[-1] != 1):
        # Bytes are brought in order first: moving them is fast, to compute out of order is not.
        image = np.ascontiguousarray(image[..., ::-1] if mirrored else image)
        mean = mean[..., ::-1] if mirrored and mean is not None else mean
        target = out
    if mean is not None:
        np.subtract(image, mean, out=target, dtype=out.dtype)
        if scale != 1:
            np.multiply(out, scale, out=out)
    elif scale != 1:
        np.multiply(image, scale, out=target, dtype=out.dtype)
    else:
        np.copyto(target, image)
