"""All layer types by name: what makes a layer of its parameter, and what a type reads."""

from __future__ import annotations

from . import plugins
from .errors import UserError, nearest
from .layers.base import Layer, registered
from .proto import LayerParameter, is_unread, why_idle
from .proto.caffe_pb2 import Phase
from .proto.titles import title

_FIELDS = LayerParameter.DESCRIPTOR.fields_by_name


def layer_names() -> list[str]:
    """All layer types: ours, those of other packages, and those registered since the start."""
    return sorted({*registered, *plugins.names(plugins.LAYERS)})


def layer_type(name: str) -> type[Layer] | None:
    """The class of a layer type; its module is imported. None where there is no such type."""
    found = registered.get(name) or plugins.find(plugins.LAYERS, name)
    if found and name not in registered:
        raise UserError(f"the entry point of layer type {name} lacks @register({name!r})")
    return registered.get(name)


def layer_types() -> dict[str, type[Layer]]:
    """Every layer type by name: imports all of them."""
    return {name: found for name in layer_names() if (found := layer_type(name))}


def create_layer(param: LayerParameter, phase: str, *, key: int = 0, seed: int = 0) -> Layer:
    """The layer that a LayerParameter describes. An unknown type raises UserError.

    phase: the net's, which a layer has that names none of its own.
    """
    found = layer_type(param.type)
    if found is None:
        near = nearest(param.type, layer_names())
        hint = f' (did you mean "{near}"?)' if near else ""
        what = f'unknown layer type "{param.type}"{hint}' if param.type else "has no type"
        raise UserError(f"{title(param)}: {what}; `osucaffe layers` lists the known types")
    if param.HasField("phase"):
        phase = Phase.Name(param.phase)
    layer = found.form(param)(param, phase, key=key, seed=seed)
    layer.check_counts()
    return layer


def messages_of(layer_type: type[Layer]) -> tuple[str, ...]:
    """The fields of LayerParameter that hold a type's settings: "convolution_param", say."""
    if layer_type.messages is not None:
        return layer_type.messages
    own = f"{layer_type.type}Parameter"
    return tuple(
        name
        for name, field in _FIELDS.items()
        if field.message_type is not None and field.message_type.name == own
    )


def settings_of(layer_type: type[Layer]) -> dict[str, list[str]]:
    """The names of the settings in each of a type's messages that it reads."""
    found = {message: _FIELDS[message].message_type for message in messages_of(layer_type)}
    return {
        message: [
            field.name
            for field in kind.fields
            if not is_unread(kind.name, field.name, layer_type.type)
            and not why_idle(kind.name, field.name, layer_type.type)
        ]
        for message, kind in found.items()
        if kind is not None
    }
