"""What makes a failing net smaller: fewer layers, smaller extents, fewer settings."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from osucaffe.proto import caffe_pb2
from tests.children import Ended, Limits, run_apart

Net = caffe_pb2.NetParameter
Sorts = Callable[[Net], Iterable[str]]
"""How a net fails: what sorts of differences there are."""

LIMITS = Limits(60.0, 60.0)


def apart(function: Sorts, net: Net) -> set[str]:
    """What the function finds, in a child of this process: it may crash or hang."""

    @contextlib.contextmanager
    def begin() -> Iterator[Callable[[Net], list[str]]]:
        yield lambda net: sorted(function(net))

    found = run_apart(begin, net, LIMITS)
    return {f"ends with {found.what}"} if isinstance(found, Ended) else set(found)


def minimize(net: Net, fails: Callable[[Net], bool], tries: int = 400) -> Net:
    """A smaller net that fails, too."""
    shrinks = True
    while shrinks and tries > 0:
        shrinks = False
        for steps in (_fewer_layers, _fewer_bottoms, _smaller_extents, _fewer_settings):
            at = 0  # as many steps as there were did not help: what is behind them is next
            while tries > 0:
                smaller = next(itertools.islice(steps(net), at, None), None)
                if smaller is None:
                    break
                tries -= 1
                if fails(smaller):
                    net, shrinks = smaller, True
                else:
                    at += 1
    return net


def _copy(net: Net) -> Net:
    copy = Net()
    copy.CopyFrom(net)
    return copy


def _fewer_layers(net: Net) -> Iterator[Net]:
    """The net less a layer and all that comes of it; with a layer's bottom in place of its top."""
    for index in reversed(range(len(net.layer))):
        if net.layer[index].type != "Input":
            yield _without(net, index)
            if net.layer[index].bottom:
                yield _bypassed(net, index)


def _fewer_bottoms(net: Net) -> Iterator[Net]:
    for index, layer in enumerate(net.layer):
        least = {"Concat": 1, "Eltwise": 2}.get(layer.type, len(layer.bottom))
        for position in range(len(layer.bottom) if len(layer.bottom) > least else 0):
            copy = _copy(net)
            del copy.layer[index].bottom[position]
            if param := copy.layer[index].eltwise_param.coeff:
                del param[position]
            yield _pruned(copy)


def _smaller_extents(net: Net) -> Iterator[Net]:
    """An extent is made smaller in all inputs at once."""
    extents = sorted({dim for each in net.layer for dim in _dims(each)}, reverse=True)
    for extent in extents:
        for less in sorted({1, 2, extent // 2, extent - 1} - {0}):
            if less < extent:
                copy = _copy(net)
                for layer in copy.layer:
                    if layer.type == "Input":
                        dims = [less if dim == extent else dim for dim in _dims(layer)]
                        layer.input_param.shape[0].dim[:] = dims
                yield copy


def _fewer_settings(net: Net) -> Iterator[Net]:
    if net.force_backward:
        copy = _copy(net)
        copy.ClearField("force_backward")
        yield copy
    for index, layer in enumerate(net.layer):
        for path in _settings(layer) if layer.type != "Input" else ():
            copy = _copy(net)
            message: Any = copy.layer[index]
            for name in path[:-1]:
                message = getattr(message, name)
            message.ClearField(path[-1])
            yield copy


def _dims(layer: caffe_pb2.LayerParameter) -> list[int]:
    return list(layer.input_param.shape[0].dim) if layer.type == "Input" else []


def _settings(message: Any) -> Iterator[tuple[str, ...]]:
    for field, value in message.ListFields():
        if field.name in ("name", "type", "bottom", "top"):
            continue
        yield (field.name,)
        if hasattr(value, "ListFields"):
            yield from ((field.name, *path) for path in _settings(value))


def _without(net: Net, index: int) -> Net:
    """The net less a layer and all that comes of it."""
    gone: set[str] = set()
    copy = Net(name=net.name, force_backward=net.force_backward)
    for number, layer in enumerate(net.layer):
        if number == index or gone & set(layer.bottom):
            gone.update(set(layer.top) - set(layer.bottom))
            gone.update(set(layer.bottom) & set(layer.top) if number != index else ())
            continue
        copy.layer.append(layer)
    return _pruned(copy)


def _bypassed(net: Net, index: int) -> Net:
    """The net with a layer's first bottom in the place of its tops."""
    copy = _copy(net)
    layer = copy.layer[index]
    tops, first = set(layer.top), layer.bottom[0]
    del copy.layer[index]
    for later in copy.layer[index:]:
        for names in later.bottom, later.top:
            names[:] = [first if name in tops else name for name in names]
    return _pruned(copy)


def _pruned(net: Net) -> Net:
    """The net less the inputs that nobody reads."""
    read = {name for layer in net.layer for name in layer.bottom}
    copy = Net(name=net.name, force_backward=net.force_backward)
    copy.layer.extend(e for e in net.layer if e.type != "Input" or e.top[0] in read)
    return copy
