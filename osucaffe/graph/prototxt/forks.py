"""What nets of Caffe's forks mean where they do not say it: where Crop layers cut, and which
settings another Caffe reads otherwise. What is taken for granted is told."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

from ...errors import UserError, listed
from ...layers.core.normalization import NVIDIA_LEAST_EPS, is_nvidia_batch_norm
from ...proto import LayerParameter, NetParameter, title
from .geometry import (
    IDENTITY,
    AxisMismatchException,
    CannotCrop,
    CoordMap,
    UndefinedMapException,
    compose,
    coord_map,
    crop_offset,
    inverse,
)

log = logging.getLogger("osucaffe")

_Blob = tuple[str, int]
"""A blob's name, and which layer made it."""


class _Sources:
    """Where the blobs of a net come from, by the first bottom of each layer."""

    def __init__(self) -> None:
        self._makers: dict[str, int] = {}
        self._first: list[_Blob | None] = []

    def add(self, layer: LayerParameter) -> None:
        """The next layer."""
        self._first.append(self.blob(layer.bottom[0]) if layer.bottom else None)
        self._makers |= dict.fromkeys(layer.top, len(self._first) - 1)

    def blob(self, name: str) -> _Blob:
        """The blob of this name after the layers so far; UserError is left to others."""
        return name, self._makers.get(name, -1)

    def path(self, name: str) -> Iterator[_Blob]:
        """The blob of this name, what it was made of, and so on."""
        at: _Blob | None = self.blob(name)
        while at is not None:
            yield at
            at = self._first[at[1]] if at[1] >= 0 else None


def align_crops(net: NetParameter) -> NetParameter:
    """The net with the offsets of Crop layers that leave them to its geometry.

    Those with crop_param.align do (V1 CROPs and AutoCrops are such); UserError where there is no
    such offset. So do those without crop_param in nets of Caffe's FCN branch, which has no such
    field. In BVLC Caffe their offset is 0, and nothing tells the nets apart, unless the FCN branch
    would refuse them. Where the two differ, a warning names the layers.
    """
    crops = {i: layer for i, layer in enumerate(net.layer) if layer.type == "Crop"}
    asked = {i for i, layer in crops.items() if layer.crop_param.align}
    silent = {i for i, layer in crops.items() if not layer.HasField("crop_param")}
    if not asked | silent:
        return net
    aligned, faults = _aligned(net, asked | silent)
    moved = [
        f'"{crops[i].name}" (top "{crops[i].top[0]}"): '
        + " x ".join(map(str, aligned.layer[i].crop_param.offset))
        for i in sorted(silent - set(faults))
        if any(aligned.layer[i].crop_param.offset)
    ]
    told = [f"{title(crops[i])} has crop_param" for i in sorted(set(crops) - asked - silent)]
    told += [f"{title(crops[i])} would stop it: {faults[i]}" for i in sorted(silent & set(faults))]
    if moved:
        log.warning(
            "Crop layers without crop_param: taken as those of %s. In that branch their offsets "
            "follow from the net's geometry, %s; in BVLC Caffe they are 0. Write crop_param "
            "{ align: true } for the one, crop_param { offset: 0 } for the other",
            f"BVLC Caffe, not of its FCN branch (HED, CRF-as-RNN): {told[0]}"
            if told
            else "Caffe's FCN branch (HED, CRF-as-RNN)",
            listed(moved, 6),
        )
    if silent and (told or not moved):
        aligned, faults = _aligned(net, asked)
    for i in sorted(asked & set(faults)):
        raise UserError(f"{title(crops[i])}, crop_param.align: {faults[i]}: give the offset")
    return aligned


def _aligned(net: NetParameter, which: Collection[int]) -> tuple[NetParameter, dict[int, str]]:
    """The net with the offsets of these Crop layers; for which there is none, and why."""
    result, sources, faults = NetParameter(), _Sources(), {}
    result.CopyFrom(net)
    for i, layer in enumerate(result.layer):
        if i in which and len(layer.bottom) == 2:
            try:
                axis, *mapped = _map_between(result, sources, *layer.bottom)
                offset = crop_offset((axis, *mapped))
            except (CannotCrop, AxisMismatchException, UndefinedMapException) as error:
                faults[i] = str(error) or "its bottoms do not lie over one blob"
            else:
                first = 2 if axis is None else axis + 1  # maps do not count the batch axis
                given = layer.crop_param
                if given.offset or (given.HasField("axis") and given.axis != first):
                    text = f"cannot be combined with offset, or an axis but {first}"
                    raise UserError(f"{title(layer)}, crop_param.align: {text}")
                given.Clear()
                given.axis = first
                given.offset.extend(offset)
        sources.add(layer)
    return result, faults


def _map_between(net: NetParameter, sources: _Sources, name: str, other: str) -> CoordMap:
    """The map from one blob to another, over the last one that both come from."""
    path = list(sources.path(name))
    common = next((blob for blob in sources.path(other) if blob in path), None)
    if common is None:
        raise CannotCrop("its bottoms do not come from one blob")
    maps = []
    for each in (name, other):
        mapped = IDENTITY
        for blob in sources.path(each):
            if blob == common:
                break
            mapped = compose(mapped, coord_map(net.layer[blob[1]]))
        maps.append(mapped)
    return compose(maps[1], inverse(maps[0]))


def warn_of_forks(net: NetParameter, phase: str) -> None:
    """Name the layers that compute otherwise than what they say, or perhaps than what is meant."""
    norms = [
        layer for layer in net.layer if layer.type == "BatchNorm" and is_nvidia_batch_norm(layer)
    ]
    past = phase == "TEST"
    _warn(
        "use_global_stats of %s is not read, as in NVIDIA Caffe: the phase says it. BVLC Caffe's "
        "BatchNorm reads it: one without scale_bias, scale_filler and bias_filler, before a Scale",
        [
            layer
            for layer in norms
            if layer.batch_norm_param.HasField("use_global_stats")
            and layer.batch_norm_param.use_global_stats != past
        ],
    )
    _warn(
        f"eps of %s is taken as {NVIDIA_LEAST_EPS:g}, as in NVIDIA Caffe",
        [layer for layer in norms if layer.batch_norm_param.eps < 0.999 * NVIDIA_LEAST_EPS],
    )
    _warn(
        "lr_mult and decay_mult of scale and bias of %s are taken as written; NVIDIA Caffe takes 1",
        [
            layer
            for layer in norms
            if not past and any((p.lr_mult, p.decay_mult) != (1, 1) for p in layer.param[3:])
        ],
    )
    _warn(
        "HED weighs positives and negatives of ImageLabelmapData by their shares, as RCF does; the "
        "losses here are BVLC Caffe's, which do not: %s. Write loss_param { class_balance: 1 } for "
        "HED's (RCF's: 1.1), class_balance: 0 for these",
        list(_losses_of_maps(net)),
    )


def _losses_of_maps(net: NetParameter) -> Iterator[LayerParameter]:
    """The plain losses of HED's maps. (DSS, whose loss is plain, sets normalize.)"""
    sources = _Sources()
    for layer in net.layer:
        if layer.type == "SigmoidCrossEntropyLoss" and len(layer.bottom) == 2:
            *_, (name, at) = sources.path(layer.bottom[1])
            source = net.layer[at] if at >= 0 else LayerParameter()
            if (
                source.type == "ImageLabelmapData"
                and name in source.top[1:]
                and not source.image_data_param.HasField("normalize")
                and not layer.loss_param.HasField("class_balance")
            ):
                yield layer
        sources.add(layer)


def _warn(text: str, layers: list[LayerParameter]) -> None:
    if layers:
        log.warning(text, listed(title(layer) for layer in layers))
