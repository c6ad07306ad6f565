"""Weights of EfficientNet-Lite in PyTorch's file format, made into those of the Caffe net."""

from __future__ import annotations

import io
import struct
from itertools import islice
from typing import Any

import numpy as np

from ...data.sets.pickled import read_pickle
from ...proto import NetParameter, array_to_blob

_MAGIC = 0x1950A86A20F9469CFC6C
_STATISTICS = "num_batches_tracked"


def read_tensors(content: bytes) -> dict[str, np.ndarray]:
    """The tensors of a state dict as PyTorch wrote it before version 1.6, by name and in its order.

    That is five pickles (a number, the version, the machine, the tensors, the names of their
    storages), and the storages, each after the number of its elements. ValueError for another file.
    """
    try:
        return _read(io.BytesIO(content))
    except (struct.error, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is damaged ({error})") from error


def _read(file: io.BytesIO) -> dict[str, np.ndarray]:
    if read_pickle(file) != _MAGIC:
        raise ValueError("it is not a file of PyTorch's, or of its version 1.6 or later")
    _, _, state, names = (read_pickle(file) for _ in range(4))
    kinds = {storage[2]: storage[1] for storage, *_ in state.values()}
    storages: dict[Any, np.ndarray] = {}
    for name in names:
        (count,) = struct.unpack("<q", file.read(8))
        kind = np.dtype(str(kinds[name]))
        storages[name] = np.frombuffer(file.read(count * kind.itemsize), kind, count)
    tensors = {}
    for name, (storage, offset, shape, strides, *_) in state.items():
        values = storages[storage[2]]
        size = values.itemsize
        steps = [size * stride for stride in strides]
        tensors[name] = np.ndarray(shape, values.dtype, values, size * offset, steps)
    return tensors


def set_weights(net: NetParameter, tensors: dict[str, np.ndarray]) -> None:
    """Give the layers of a net their weights, which come in the layers' order.

    Images come blue first here. Kernels that are wider in the net, for uneven padding, get a first
    row and column of 0.
    """
    values = iter([each for name, each in tensors.items() if not name.endswith(_STATISTICS)])
    affine: list[np.ndarray] = []
    for layer in net.layer:
        blobs: list[np.ndarray] = []
        if layer.type == "Convolution":
            kernel = next(values)
            wider = layer.convolution_param.kernel_size[0] - kernel.shape[2]
            kernel = np.pad(kernel, ((0, 0), (0, 0), (wider, 0), (wider, 0)))
            blobs = [kernel[:, ::-1] if kernel.shape[1] == 3 else kernel]
        elif layer.type == "BatchNorm":
            *affine, mean, variance = islice(values, 4)
            blobs = [mean, variance, np.ones(1, np.float32)]
        elif layer.type == "Scale":
            blobs = affine
        elif layer.type == "InnerProduct":
            blobs = [next(values), next(values)]
        layer.blobs.extend(map(array_to_blob, blobs))
