"""The upgrade of V0 nets, Caffe's first form: one flat list of fields for all layer types."""

from __future__ import annotations

from ..errors import UserError
from .caffe_pb2 import NetParameter, V0LayerParameter, V1LayerParameter

_SAME_TYPES = """
    accuracy bnll concat data dropout euclidean_loss flatten hdf5_data hdf5_output im2col
    infogain_loss lrn multinomial_logistic_loss relu sigmoid softmax softmax_loss split tanh
    window_data
"""
_TYPES = {name: name.upper() for name in _SAME_TYPES.split()}
_TYPES |= {
    "conv": "CONVOLUTION",
    "images": "IMAGE_DATA",
    "innerproduct": "INNER_PRODUCT",
    "pool": "POOLING",
}


def _fields(text: str) -> dict[str, str]:
    """Names of fields in V0, and what they are called now: "name" or "name:now"."""
    return {name: now or name for name, _, now in (word.partition(":") for word in text.split())}


_WEIGHTS = "num_output biasterm:bias_term weight_filler bias_filler "
_WINDOW = "pad kernelsize:kernel_size stride "
_RECORDS = "source batchsize:batch_size "
_IMAGES = "rand_skip shuffle_images:shuffle new_height new_width"
_WINDOWS = (
    "det_fg_threshold:fg_threshold det_bg_threshold:bg_threshold det_fg_fraction:fg_fraction "
    "det_context_pad:context_pad det_crop_mode:crop_mode"
)
_PARAMETERS = {
    "conv": ("convolution_param", _fields(_WEIGHTS + _WINDOW + "group")),
    "innerproduct": ("inner_product_param", _fields(_WEIGHTS)),
    "pool": ("pooling_param", _fields(_WINDOW + "pool")),
    "dropout": ("dropout_param", _fields("dropout_ratio")),
    "lrn": ("lrn_param", _fields("local_size alpha beta k")),
    "concat": ("concat_param", _fields("concat_dim")),
    "infogain_loss": ("infogain_loss_param", _fields("source")),
    "data": ("data_param", _fields(_RECORDS + "rand_skip")),
    "hdf5_data": ("hdf5_data_param", _fields(_RECORDS)),
    "images": ("image_data_param", _fields(_RECORDS + _IMAGES)),
    "window_data": ("window_data_param", _fields(_RECORDS + _WINDOWS)),
    "hdf5_output": ("", _fields("hdf5_output_param")),
}
"""By V0 type: its message of parameters in V1, and the V0 fields that go there."""
_COMMON = {
    "transform_param": _fields("scale meanfile:mean_file cropsize:crop_size mirror"),
    "": _fields("name blobs blobs_lr weight_decay"),
}
"""By message: fields that any layer may have."""


def is_v0(net: NetParameter) -> bool:
    """Whether a layer of the net is in the V0 form."""
    return any(layer.HasField("layer") for layer in net.layers)


def upgrade_v0(net: NetParameter) -> NetParameter:
    """The V0 net as a V1 net; padding layers become the `pad` of the layers that they feed.

    Raises UserError for a layer type that V0 did not have, or a field that its type cannot have.
    """
    upgraded = NetParameter()
    upgraded.CopyFrom(net)
    upgraded.ClearField("layers")
    padding: dict[str, V1LayerParameter] = {}  # by the blob that the padding layer makes
    for old in net.layers:
        connection = V1LayerParameter()
        connection.CopyFrom(old)
        _absorb_padding(connection, padding)
        for top in old.top:
            padding.pop(top, None)
        if old.layer.type == "padding":
            padding.update(dict.fromkeys(old.top, old))
        else:
            upgraded.layers.append(_upgrade_layer(connection))
    return upgraded


def _absorb_padding(connection: V1LayerParameter, padding: dict[str, V1LayerParameter]) -> None:
    layer = connection.layer
    for i, bottom in enumerate(connection.bottom):
        source = padding.get(bottom)
        if source is None:
            continue
        if layer.type not in ("conv", "pool") or len(connection.bottom) != 1:
            raise UserError(
                f'old layer "{layer.name}" of type "{layer.type}" takes padded input, as only conv '
                "and pool with one bottom can"
            )
        if len(source.bottom) != 1 or len(source.top) != 1:
            raise UserError(f'old padding layer "{source.layer.name}" needs one bottom and one top')
        layer.pad = source.layer.pad
        connection.bottom[i] = source.bottom[0]


def _upgrade_layer(connection: V1LayerParameter) -> V1LayerParameter:
    if not connection.HasField("layer"):
        raise UserError(f'layers "{connection.name}" mixes the forms of V0 and V1 nets')
    old = connection.layer
    new = V1LayerParameter(bottom=connection.bottom, top=connection.top)
    for field, value in old.ListFields():
        if field.name == "type":
            new.type = getattr(V1LayerParameter, _type_name(old))
            continue
        place, name = _place(old, field.name)
        target = getattr(new, place) if place else new
        current = getattr(target, name)
        if hasattr(current, "extend"):  # a list; V0 gives one number for what is now a list
            current.extend([value] if isinstance(value, int) else value)
        elif field.message_type is not None:
            current.CopyFrom(value)
        else:
            setattr(target, name, value)
    return new


def _type_name(layer: V0LayerParameter) -> str:
    if layer.type not in _TYPES:
        raise UserError(
            f'old layer "{layer.name}" is of unknown type "{layer.type}" '
            f"(one of {', '.join(_TYPES)}, padding)"
        )
    return _TYPES[layer.type]


def _place(layer: V0LayerParameter, field: str) -> tuple[str, str]:
    """The message within the new layer where a V0 field goes, and its name there."""
    own = _PARAMETERS.get(layer.type, ("", {}))
    for message, names in (*_COMMON.items(), own):
        if field in names:
            return message, names[field]
    raise UserError(
        f'old layer "{layer.name}" of type "{layer.type}" cannot have a field "{field}"'
    )
