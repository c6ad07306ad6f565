"""What messages call a layer: its name may be missing, and others may have the same."""

from __future__ import annotations

from .caffe_pb2 import LayerParameter, LayerWeights


def title(layer: LayerParameter | LayerWeights) -> str:
    """The layer in a sentence: `layer "conv1" (Convolution)`, `unnamed layer (ReLU, top "y")`."""
    if layer.name:
        return f'layer "{layer.name}"' + (f" ({layer.type})" if layer.type else "")
    sides = {side: getattr(layer, side, ()) for side in ("top", "bottom")}
    blob = next((f', {side} "{names[0]}"' for side, names in sides.items() if names), "")
    return f"unnamed layer ({layer.type or 'no type'}{blob})"


def label(layer: LayerParameter | LayerWeights) -> str:
    """The layer in tables, traces and the log: its name, or without one its type in brackets."""
    return layer.name or f"({layer.type})"
