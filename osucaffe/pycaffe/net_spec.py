"""Nets written in Python: `layers` and `params`, from which NetSpec makes a NetParameter."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import listed, nearest
from ..proto import caffe_pb2

LayerParameter = caffe_pb2.LayerParameter
NetParameter = caffe_pb2.NetParameter


_FIELDS = {
    field.message_type.name.removesuffix("Parameter"): field.name
    for field in LayerParameter.DESCRIPTOR.fields
    if field.name.endswith("_param") and field.message_type is not None
}
"""The field of LayerParameter that holds a type's own settings: Pooling -> pooling_param."""


def param_field(type_name: str) -> str | None:
    """The field of LayerParameter whose message is this type's own, if there is one."""
    return _FIELDS.get(type_name)


def param_name_dict() -> dict[str, str]:
    """The settings of each type, as Caffe names them: Pooling -> pooling."""
    return {name: field.removesuffix("_param") for name, field in _FIELDS.items()}


def assign_proto(message: Any, name: str, value: Any) -> None:
    """Set a field: dicts fill messages, lists fill repeated fields (one value: a list of one).

    AttributeError where the message has no such field.
    """
    _check_field(message, name, message.DESCRIPTOR.name)
    field = getattr(message, name)
    if hasattr(field, "extend"):
        values = value if isinstance(value, list | tuple) else [value]
        for entry in values:
            if isinstance(entry, Mapping):
                item = field.add()
                for key, part in entry.items():
                    assign_proto(item, key, part)
            else:
                field.append(entry)
    elif isinstance(value, Mapping):
        field.SetInParent()
        for key, part in value.items():
            assign_proto(field, key, part)
    else:
        try:
            setattr(message, name, value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{message.DESCRIPTOR.name}.{name}: {error}") from None


def _check_field(message: Any, name: str, what: str) -> None:
    known = list(message.DESCRIPTOR.fields_by_name)
    if name not in known:
        near = nearest(name, known)
        hint = f" (did you mean {near!r}?)" if near else ""
        raise AttributeError(f"{what} has no field {name!r}{hint}")


class _Names:
    """The names of layers and blobs: those that a NetSpec gives, and numbered ones."""

    def __init__(self, given: Mapping[Any, str]) -> None:
        self._known: dict[Any, str] = dict(given)
        self._numbers: Counter[str] = Counter()

    def of(self, item: Any, type_name: str) -> str:
        if item not in self._known:
            self._numbers[type_name] += 1
            self._known[item] = f"{type_name}{self._numbers[type_name]}"
        return self._known[item]


class Top:
    """One output of a layer: give it to other layers."""

    def __init__(self, fn: Function, n: int) -> None:
        self.fn = fn
        self.n = n

    def to_proto(self) -> Any:
        """The net that makes this output."""
        return to_proto(self)


class Function:
    """A layer with its inputs and settings."""

    def __init__(self, type_name: str, inputs: Sequence[Any], params: Mapping[str, Any]) -> None:
        for index, given in enumerate(inputs):
            if not isinstance(given, Top):
                raise TypeError(f"{type_name} input {index} is not a Top (type is {type(given)})")
        self.type_name = type_name
        self.inputs: Sequence[Top] = inputs
        self.params = dict(params)
        self.ntop: int = self.params.pop("ntop", 1)
        self.in_place: bool = self.params.pop("in_place", False)
        self.tops = tuple(Top(self, n) for n in range(self.ntop))

    def add(self, layers: OrderedDict[Function, Any], names: _Names) -> None:
        """Put this layer after those that it needs, unless it is there already."""
        # A loop, not recursion: deep nets are deeper than Python's stack.
        pending: list[Function] = [self]
        while pending:
            layer = pending[-1]
            missing = [top.fn for top in layer.inputs if top.fn not in layers]
            if missing:
                pending.extend(reversed(missing))
                continue
            pending.pop()
            if layer not in layers:
                layers[layer] = layer._describe(layers, names)

    def _describe(self, layers: Mapping[Function, Any], names: _Names) -> Any:
        layer = LayerParameter(type=self.type_name)
        layer.bottom.extend(layers[top.fn].top[top.n] for top in self.inputs)
        if self.in_place:
            layer.top.extend(layer.bottom)
        else:
            layer.top.extend(names.of(top, self.type_name) for top in self.tops)
        layer.name = names.of(self.tops[0] if self.tops else self, self.type_name)
        for key, value in self.params.items():
            try:
                self._assign(layer, key, value)
            except (AttributeError, TypeError, ValueError) as error:
                raise type(error)(f'layer "{layer.name}", {key}: {error}') from None
        return layer

    def _assign(self, layer: Any, key: str, value: Any) -> None:
        """Set a field of the layer, or of its type's own message."""
        field = param_field(self.type_name)
        is_field = field is not None and key in getattr(layer, field).DESCRIPTOR.fields_by_name
        if is_field and not key.endswith("param"):
            assign_proto(getattr(layer, field or ""), key, value)
        elif key in layer.DESCRIPTOR.fields_by_name:
            assign_proto(layer, key, value)
        elif field is None:
            raise AttributeError(
                f"{self.type_name} has no field {key!r}: no layer type of this name has any"
            )
        else:
            _check_field(getattr(layer, field), key, self.type_name)


def to_proto(*tops: Any) -> Any:
    """The net that makes these outputs. All names are made from the layers' types."""
    return _build(tops, {})


def _build(tops: Iterable[Any], given: Mapping[Any, str]) -> Any:
    """The net that makes outputs (or layers without any), some of which have names."""
    layers: OrderedDict[Function, Any] = OrderedDict()
    names = _Names(given)
    for top in tops:
        (top.fn if isinstance(top, Top) else top).add(layers, names)
    return NetParameter(layer=layers.values())


class NetSpec:
    """A net in the making: the attributes that are set become its blobs and layers.

    n.conv = layers.Convolution(n.data, ...) makes layer "conv" with top "conv".
    """

    tops: OrderedDict[str, Any]

    def __init__(self) -> None:
        super().__setattr__("tops", OrderedDict())

    def __setattr__(self, name: str, value: Any) -> None:
        self.tops[name] = value

    def __getattr__(self, name: str) -> Any:
        try:
            return self.tops[name]
        except KeyError:
            raise AttributeError(f"this net has no {name!r}; so far: {listed(self.tops)}") from None

    def __getitem__(self, name: str) -> Any:
        return self.tops[name]

    def __delattr__(self, name: str) -> None:
        del self.tops[name]

    __setitem__, __delitem__ = __setattr__, __delattr__

    def keys(self) -> list[str]:
        """The names so far."""
        return list(self.tops)

    def vals(self) -> list[Any]:
        """The tops so far."""
        return list(self.tops.values())

    def update(self, name: str, params: Mapping[str, Any]) -> None:
        """Set more of a layer's fields: of the layer that makes this top."""
        top = self.tops[name]
        (top.fn if isinstance(top, Top) else top).params.update(params)

    def to_proto(self) -> Any:
        """The net so far, as a NetParameter."""
        return _build(self.tops.values(), {top: name for name, top in self.tops.items()})


class Layers:
    """`layers.Type(input, ..., field=value, ...)` makes a layer and returns its top or tops.

    ntop: how many (0: the layer itself is returned). in_place: its tops are its inputs. Fields
    of the type's own message stand alone, those of others as dicts: param=[dict(lr_mult=1)].
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def layer(*inputs: Any, **params: Any) -> Any:
            function = Function(name, inputs, params)
            if function.ntop == 0:
                return function
            return function.tops[0] if function.ntop == 1 else function.tops

        return layer


class Parameters:
    """`params.Pooling.MAX` is the value MAX of PoolingParameter."""

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(caffe_pb2, name + "Parameter")
        except AttributeError:
            raise AttributeError(f"no message {name}Parameter") from None


layers = Layers()
params = Parameters()
