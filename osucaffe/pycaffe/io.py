"""The way of images and arrays into nets and back: Transformer, blobs, datums, crops."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..data.pictures.image import decode_content, read_content
from ..proto import array_to_blob, blob_shape, caffe_pb2
from ..proto import blob_to_array as _blob_to_array
from .resize import resized, zoomed

log = logging.getLogger("osucaffe")

Extents = Sequence[int] | np.ndarray
"""Height and width."""

LUMINANCE = np.array([[0.2125], [0.7154], [0.0721]], np.float32)
"""What of red, green and blue makes gray: scikit-image's, by which pycaffe reads."""

# -- messages ------------------------------------------------------------------------------------


def blobproto_to_array(blob: Any, return_diff: bool = False) -> np.ndarray:
    """The values (or gradients) of a BlobProto in its shape. ValueError where they do not fit."""
    shape = blob_shape(blob)
    values = np.array(blob.diff if return_diff else blob.data)
    if not return_diff and not values.size and len(blob.double_data):
        values = np.array(_blob_to_array(blob))
    return values.reshape(shape)


def array_to_blobproto(arr: np.ndarray, diff: np.ndarray | None = None) -> Any:
    """A BlobProto with these values, and perhaps gradients of the same shape."""
    return array_to_blob(np.asarray(arr, np.float32), _float32(diff))


def _float32(values: np.ndarray | None) -> np.ndarray | None:
    return None if values is None else np.asarray(values, np.float32)


def arraylist_to_blobprotovector_str(arraylist: Sequence[np.ndarray]) -> bytes:
    """Arrays as one serialized BlobProtoVector."""
    vector = caffe_pb2.BlobProtoVector()
    vector.blobs.extend(array_to_blobproto(array) for array in arraylist)
    return vector.SerializeToString()


arraylist_to_blobprotovecor_str = arraylist_to_blobprotovector_str  # as of old


def blobprotovector_str_to_arraylist(content: bytes) -> list[np.ndarray]:
    """The arrays of a serialized BlobProtoVector."""
    vector = caffe_pb2.BlobProtoVector.FromString(content)
    return [blobproto_to_array(blob) for blob in vector.blobs]


def array_to_datum(arr: np.ndarray, label: int | None = None) -> Any:
    """A Datum of an array (channels, height, width): bytes if it is uint8, floats otherwise."""
    if arr.ndim != 3:
        raise ValueError(f"an image has 3 axes (channels, height, width), this has {arr.ndim}")
    channels, height, width = arr.shape
    datum = caffe_pb2.Datum(channels=channels, height=height, width=width)
    if arr.dtype == np.uint8:
        datum.data = arr.tobytes()
    else:
        datum.float_data.extend(arr.astype(np.float32).ravel())
    if label is not None:
        datum.label = label
    return datum


def datum_to_array(datum: Any) -> np.ndarray:
    """The values of a Datum, (channels, height, width). The label is in `datum.label`."""
    shape = (datum.channels, datum.height, datum.width)
    if len(datum.data):
        return np.frombuffer(datum.data, np.uint8).reshape(shape)
    return np.array(datum.float_data, np.float32).reshape(shape)


# -- images --------------------------------------------------------------------------------------


def load_image(filename: str | Path | IO[bytes], color: bool = True) -> np.ndarray:
    """An image file as float32 in 0..1: (height, width, 3) in RGB, or (height, width, 1).

    filename: or an open file. What says how transparent it is goes. UserError where it cannot be
    read.
    """
    if isinstance(filename, str | Path):
        name, content = filename, read_content(filename)
    else:
        name, content = str(getattr(filename, "name", "the open file")), filename.read()
    pixels = decode_content(name, content, red_first=True)
    return scale_pixels(pixels[:, :, :3], color)


def scale_pixels(pixels: np.ndarray, color: bool = True) -> np.ndarray:
    """Pixels of 0..255 as 0..1, in RGB or gray: float32."""
    image: np.ndarray = np.divide(pixels, np.float32(255), dtype=np.float32)
    if color:
        return np.tile(image, 3) if image.shape[2] == 1 else image
    return image @ LUMINANCE if image.shape[2] == 3 else image


def resize(image: np.ndarray, output_shape: Sequence[int], order: int = 1) -> np.ndarray:
    """scikit-image's, which pycaffe's scripts find here: (height, width) or (height, width,
    channels), as numbers of 0..1 where it is of whole numbers. order: as of `resize_image`."""
    values = np.asarray(image)
    if np.issubdtype(values.dtype, np.integer):
        values = values / np.iinfo(values.dtype).max
    planes = values.reshape(*values.shape[:2], -1)
    shape = (*output_shape[:2], *values.shape[2:])
    return resized(planes, tuple(output_shape[:2]), order).reshape(shape)


def resize_image(im: np.ndarray, new_dims: Extents, interp_order: int = 1) -> np.ndarray:
    """An image (height, width, channels) at another (height, width), as float32.

    As pycaffe does it: 1 or 3 channels as scikit-image (which smooths what it shrinks), others as
    SciPy's zoom. interp_order: 0 takes the nearest pixel, 1 interpolates (bilinear).
    """
    if interp_order not in (0, 1):
        raise ValueError(f"interp_order must be 0 or 1, not {interp_order}")
    extents = tuple(int(extent) for extent in new_dims[:2])
    if np.shape(im)[:2] == extents:
        return np.array(im, np.float32)
    resize = resized if im.shape[-1] in (1, 3) else zoomed
    return resize(np.asarray(im), extents, interp_order).astype(np.float32, copy=False)


def ten_crops(extents: Sequence[int], crop_dims: Extents) -> list[tuple[int, int, int]]:
    """Where ten crops of an image (height, width) begin, row and column, and 1 for those that are
    mirrored: the corners and the centre, then the same mirrored."""
    down, right = (int(size) - int(crop) for size, crop in zip(extents, crop_dims, strict=True))
    corners = [(0, 0), (0, right), (down, 0), (down, right), (down // 2, right // 2)]
    return [(*corner, mirrored) for mirrored in (0, 1) for corner in corners]


def oversample(images: Sequence[np.ndarray], crop_dims: Extents) -> np.ndarray:
    """Ten crops of each image (height, width, channels): the corners, the centre, all mirrored.

    Returns (10 * images, *crop_dims, channels), float32.
    """
    height, width = (int(extent) for extent in crop_dims)
    crops = []
    for image in images:
        for y, x, mirrored in ten_crops(image.shape[:2], crop_dims):
            crop = image[y : y + height, x : x + width]
            crops.append(crop[:, ::-1] if mirrored else crop)
    return np.array(crops, np.float32)


class Transformer:
    """Turns images into a net's inputs and back: what each input needs is set once by its name.

    inputs: the shape of each input blob, as {"data": net.blobs["data"].data.shape}.
    The order of `preprocess`: resize, transpose, swap channels, raw scale, mean, input scale.
    """

    def __init__(self, inputs: Mapping[str, Sequence[int]]) -> None:
        self.inputs = inputs
        self.transpose: dict[str, Sequence[int]] = {}
        self.channel_swap: dict[str, Sequence[int]] = {}
        self.raw_scale: dict[str, float] = {}
        self.mean: dict[str, np.ndarray] = {}
        self.input_scale: dict[str, float] = {}

    def set_transpose(self, in_: str, order: Sequence[int]) -> None:
        """Permute the axes: (2, 0, 1) makes channels x height x width of an image."""
        self._check(in_)
        if len(order) != len(self.inputs[in_]) - 1:
            raise ValueError("the order needs as many axes as the input, without its batch axis")
        self.transpose[in_] = order

    def set_channel_swap(self, in_: str, order: Sequence[int]) -> None:
        """Reorder the channels: (2, 1, 0) makes BGR of RGB."""
        self._check(in_)
        if len(order) != self.inputs[in_][1]:
            raise ValueError("the order needs as many channels as the input")
        self.channel_swap[in_] = order

    def set_raw_scale(self, in_: str, scale: float) -> None:
        """Multiply the image by this before the mean is subtracted: 255 for means of 0..255."""
        self._check(in_)
        self.raw_scale[in_] = scale

    def set_mean(self, in_: str, mean: np.ndarray) -> None:
        """Subtract a mean: a value for each channel, or an array, resized to the input's shape."""
        self._check(in_)
        mean = np.asarray(mean)
        channels = self.inputs[in_][1]
        if mean.ndim == 1:
            if mean.shape[0] != channels:
                raise ValueError(f"{mean.shape[0]} mean values for {channels} channels")
            mean = mean[:, None, None]
        else:
            shape = tuple(self.inputs[in_][1:])
            mean = mean[None] if mean.ndim == 2 else mean
            if mean.ndim != 3 or mean.shape[0] != shape[0]:
                raise ValueError(f"the mean has shape {mean.shape}, the input {shape}")
            if mean.shape != shape:
                log.warning("the mean has shape %s: resized to the input's, %s", mean.shape, shape)
                mean = resize_image(mean.transpose(1, 2, 0), shape[1:]).transpose(2, 0, 1)
        self.mean[in_] = mean

    def set_input_scale(self, in_: str, scale: float) -> None:
        """Multiply by this at last."""
        self._check(in_)
        self.input_scale[in_] = scale

    def preprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """What the net's input wants, float32, of an image (height, width, channels)."""
        self._check(in_)
        image = np.asarray(data, np.float32)
        extents = tuple(self.inputs[in_][2:])
        if image.shape[:2] != extents:
            image = resize_image(image, extents)
        if (order := self.transpose.get(in_)) is not None:
            image = image.transpose(order)
        swap = self.channel_swap.get(in_)
        image = np.array(image) if swap is None else image[list(swap), :, :]  # both copy
        if (scale := self.raw_scale.get(in_)) is not None:
            image *= scale
        if (mean := self.mean.get(in_)) is not None:
            image -= mean
        if (scale := self.input_scale.get(in_)) is not None:
            image *= scale
        return image

    def deprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """The image that `preprocess` made this of, but for its size."""
        self._check(in_)
        image = np.array(data, np.float32).squeeze()
        if image.ndim == 2 and self.inputs[in_][1] == 1:
            image = image[None]
        if (scale := self.input_scale.get(in_)) is not None:
            image /= scale
        if (mean := self.mean.get(in_)) is not None:
            image += mean
        if (scale := self.raw_scale.get(in_)) is not None:
            image /= scale
        if (swap := self.channel_swap.get(in_)) is not None:
            image = image[np.argsort(swap), :, :]
        if (order := self.transpose.get(in_)) is not None:
            image = image.transpose(np.argsort(order))
        return image

    def _check(self, in_: str) -> None:
        if in_ not in self.inputs:
            raise Exception(f"{in_} is not one of the net inputs: {tuple(self.inputs)}")


def __getattr__(name: str) -> Any:
    """scikit-image and SciPy's zoom, which scripts find here, where these are installed."""
    if name == "skimage":
        importlib.import_module("skimage.io")
        importlib.import_module("skimage.transform")
        return importlib.import_module("skimage")
    if name == "zoom":
        return importlib.import_module("scipy.ndimage").zoom
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
