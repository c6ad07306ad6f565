"""Owns what can be said of all layer types alike: which settings each of them reads."""

from __future__ import annotations

from ..layer import Layer
from ..proto import LayerParameter, is_unread

_FIELDS = LayerParameter.DESCRIPTOR.fields_by_name


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
        ]
        for message, kind in found.items()
        if kind is not None
    }
