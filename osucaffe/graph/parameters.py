"""The sharing of parameters by name, within a net and between nets: several layers may have
the same name, or none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ..arena import Parameter
from ..blob import Blob
from ..layers.base import Layer
from ..proto import caffe_pb2


class Named(Protocol):
    """A layer, or its message."""

    name: str


_Named = TypeVar("_Named", bound=Named)


def by_name(layers: Iterable[_Named]) -> dict[str, list[_Named]]:
    """The layers of each name, in their order. Layers without a name have the empty one.

    Layers of one name in two nets, or in a net and a file, are the same in this order: the first
    is the first, the second the second.
    """
    groups: dict[str, list[_Named]] = {}
    for layer in layers:
        groups.setdefault(layer.name, []).append(layer)
    return groups


def adopt_parameters(
    layers: Sequence[Layer], share: Any | None, blobs: Mapping[str, Blob]
) -> list[Parameter]:
    """Let layers use the blobs of `share`'s layers of the same name, and parameters of one name
    use one blob. Returns the net's parameters, one per blob, in the order of the layers.

    Sharing is strict (equal shapes) or, where share_mode says PERMISSIVE, by equal counts.
    """
    trained = same_layers(layers, share.layers) if share else {}
    named: dict[str, tuple[Parameter, Layer]] = {}
    parameters: dict[Blob, Parameter] = {}
    for layer in layers:
        given, known = len(layer.param.param), len(layer.parameters)
        if given > known:
            entries = "entry" if given == 1 else "entries"
            layer.fail("param", f"has {given} {entries}, but the layer takes {known or 'none'}")
        source = trained.get(layer)
        if source is not None and len(source.parameters) != len(layer.parameters):
            layer.fail("param", f"the shared net's layer has {len(source.parameters)} parameters")
        for index, blob in enumerate(layer.parameters):
            spec = layer.spec(index)
            if source is not None:
                hint = _unlike_data(layers, blobs, share)
                shape = source.parameters[index].shape
                _check_shapes(layer, index, source, shape, strict=True, hint=hint)
                blob = layer.parameters[index] = source.parameters[index]
            elif spec.name in named and spec.name:
                owner, owner_layer = named[spec.name]
                strict = spec.share_mode != caffe_pb2.ParamSpec.PERMISSIVE
                _check_shapes(layer, index, owner_layer, owner.blob.shape, strict=strict)
                _share_multipliers(layer, spec, owner)
                owner.blob.data.flexible = False
                if owner.blob.shape != blob.shape:
                    blob.data = owner.blob.data.view(blob.shape)
                    blob.diff = owner.blob.diff.view(blob.shape)
                else:
                    layer.parameters[index] = owner.blob
                continue
            if blob not in parameters:
                name = spec.name or f"{layer.name}/{index}"
                parameter = parameters[blob] = Parameter(
                    name, layer.label, index, blob, spec.lr_mult, spec.decay_mult
                )
                if layer.is_split and (splitter := layer.context.splitter) is not None:
                    parameter.own = splitter.comm.part(blob.data.count)
                if spec.name:
                    named[spec.name] = (parameter, layer)
                    _share_multipliers(layer, spec, parameter)
    for owner, _ in named.values():
        learns = owner.lr_mult != 0
        for layer in layers:
            for index in range(len(layer.parameters)):
                if layer.spec(index).name == owner.name:
                    layer.need_gradients[index] = learns
    return list(parameters.values())


def same_layers(layers: Sequence[Layer], others: Sequence[Layer]) -> dict[Layer, Layer]:
    """Those layers with parameters that another net has too, and what they are there: by name.

    UserError where several have one name, and another number of them here: which is which?
    """
    sources = by_name(layer for layer in others if layer.parameters)
    pairs: dict[Layer, Layer] = {}
    for name, group in by_name(layer for layer in layers if layer.parameters).items():
        theirs = sources.get(name, group)
        if len(group) != len(theirs):
            group[0].fail(
                "name",
                f"{len(theirs)} layers with parameters of the net that it shares with have this "
                f"name, and {len(group)} here: give them distinct names",
            )
        if name in sources:
            pairs |= zip(group, theirs, strict=True)
    return pairs


def _unlike_data(layers: Sequence[Layer], blobs: Mapping[str, Blob], share: Any) -> str:
    """What to say where data has another shape here than in the net that is shared with."""
    for top in (top for layer in layers if not layer.param.bottom for top in layer.param.top):
        here, there = blobs[top].shape, share.blobs[top].shape if top in share.blobs else ()
        if there and here[1:] != there[1:]:
            sizes = " but ".join("x".join(map(str, shape[1:])) for shape in (here, there))
            return (
                f'; here "{top}" is {sizes} there: is crop_size, or another size, left out in one '
                "phase?"
            )
    return ""


def _check_shapes(
    layer: Layer,
    index: int,
    other: Layer,
    shape: tuple[int, ...],
    *,
    strict: bool,
    hint: str = "",
) -> None:
    needed = layer.parameters[index].shape
    if needed != shape if strict else math.prod(needed) != math.prod(shape):
        layer.fail(
            "param",
            f"parameter {index} has shape {needed}, but shares that of {other.title} with shape "
            f"{shape}{hint}",
        )


def _share_multipliers(layer: Layer, spec: caffe_pb2.ParamSpec, owner: Parameter) -> None:
    """The multipliers of one parameter may be given by any of its users, but only one value."""
    for field in ("lr_mult", "decay_mult"):
        if spec.HasField(field):
            value = getattr(spec, field)
            given = owner.given.setdefault(field, value)
            if given != value:
                layer.fail("param", f'"{spec.name}" already has {field} {given:g}, not {value:g}')
            setattr(owner, field, value)
