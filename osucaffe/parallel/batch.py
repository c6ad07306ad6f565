"""The meaning of batch_size with several ranks: per rank, or for all of them together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import UserError
from ..proto import caffe_pb2, title
from ..solvers.process_group import ProcessGroup

_FIELDS = ("data_param", "image_data_param", "hdf5_data_param", "memory_data_param",
           "window_data_param", "patch_data_param", "dense_image_data_param",
           "detection_data_param", "eval_data_param", "image_gt_data_param",
           "video_data_param")  # fmt: skip


def readers(param: caffe_pb2.NetParameter) -> Iterator[tuple[str, Any]]:
    """Each layer of the TRAIN phase that reads data: what messages call it, and its message with
    batch_size."""
    for layer in param.layer:
        for field in _FIELDS if _trains(layer) else ():
            if layer.HasField(field) and getattr(layer, field).batch_size:
                yield title(layer), getattr(layer, field)


def divide_batches(
    param: caffe_pb2.NetParameter, ranks: int, *, of: int = 1
) -> caffe_pb2.NetParameter:
    """The net with the batches of its TRAIN phase divided among the ranks.

    of: how many ranks' batches are divided, where there were more ranks than remain. UserError
    where a batch cannot be divided, layers have batches of unlike sizes (parts of these would not
    belong together), or a layer has a batch that is no `batch_size`.
    """
    divided = caffe_pb2.NetParameter()
    divided.CopyFrom(param)
    for name, message in (found := [*readers(divided)]):
        first, other = found[0][0], found[0][1].batch_size
        if message.batch_size != other:
            raise UserError(
                f"{name}, batch_size: {message.batch_size}, and that of {first} is {other}: "
                "--scal strong, or --elastic, would bring parts of the batches together that do "
                "not belong together; use --scal weak without --elastic"
            )
    for name, message in found:
        size = message.batch_size * of
        if size % ranks:
            raise UserError(
                f"{name}, batch_size: {size} cannot be divided among {ranks} "
                f"ranks: choose a multiple of {ranks}, another number of ranks, or --scal weak"
            )
        message.batch_size = size // ranks
    for layer in divided.layer:
        if _trains(layer) and layer.type in ("DummyData", "Input"):
            raise UserError(
                f"{title(layer)}: --scal strong, or --elastic, divides batch_size, which "
                "this layer does not have: use --scal weak without --elastic"
            )
    return divided


def describe(param: caffe_pb2.NetParameter, ranks: int, iter_size: int) -> str:
    """The log line about the global batch; param: the training net as one rank runs it."""
    sizes = {message.batch_size for _, message in readers(param)}
    if len(sizes) != 1:
        return f"Training on {ranks} ranks"
    size = sizes.pop()
    parts = f"{size} records on each of {ranks} ranks"
    if iter_size > 1:
        parts += f", {iter_size} times (iter_size)"
    return f"Global batch: {size * ranks * iter_size} records per update ({parts})"


def _trains(layer: caffe_pb2.LayerParameter) -> bool:
    """Whether a layer may be in the TRAIN net (its levels and stages are not looked at)."""
    included = [rule.phase for rule in layer.include if rule.HasField("phase")]
    excluded = [rule.phase for rule in layer.exclude if rule.HasField("phase")]
    return (not included or caffe_pb2.TRAIN in included) and caffe_pb2.TRAIN not in excluded


class SingleRank(ProcessGroup):
    """A process that trains alone, with the batches of that many ranks together."""

    def __init__(self, of: int) -> None:
        self._of = of

    def divide(self, param: caffe_pb2.NetParameter) -> caffe_pb2.NetParameter:
        return divide_batches(param, 1, of=self._of)
