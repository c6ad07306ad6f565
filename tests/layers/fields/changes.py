"""How a field is changed, and what is then seen of a net: all that it computes and says."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import NetParameter, is_unread, parse_text, why_idle

from .cases import Row
from .exceptions import is_exception

FILLER = "FillerParameter"
STRINGS: dict[str, list[str]] = {
    "mean_file": ["FOLDER/mean.binaryproto"],
    "normalize_type": ["L1"],
    "param_str": ["5"],
    "source": ["FOLDER/other", "FOLDER/ones.binaryproto"],
}
"""By a field's name: values of text to try."""


class Heard(logging.Handler):
    """What the package's loggers say."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line."""
        self.lines.append(record.getMessage())


def fields_of(kind: Any, reader: str, path: str = "", above: tuple[str, ...] = ()) -> Iterator[str]:
    """The path of each field that holds a value, that layers of this type accept and that is no
    exception; a filler is one value."""
    for field in kind.fields:
        inner = field.message_type
        if is_unread(kind.name, field.name, reader) or is_exception(f"{kind.name}.{field.name}"):
            continue
        whole = why_idle(kind.name, field.name, reader)
        if inner is None or inner.name == FILLER or whole:
            yield path + field.name
        elif inner.name not in above:
            yield from fields_of(inner, reader, f"{path}{field.name}.", (*above, inner.name))


def values_for(field: FieldDescriptor, value: Any) -> list[Any]:
    """Other values than this one."""
    if field.message_type is not None:
        kind = field.message_type._concrete_class
        return [kind(type="uniform", min=2, max=3) if kind.DESCRIPTOR.name == FILLER else kind()]
    if field.enum_type is not None:
        return [each.number for each in field.enum_type.values if each.number != value]
    if field.cpp_type == field.CPPTYPE_BOOL:
        return [not value] if field.has_default_value else [not value, value]
    if field.cpp_type == field.CPPTYPE_STRING:
        return STRINGS.get(field.name, ["other"])
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        found = (
            value / 2,
            value + 0.25,
            2 * value,
            1.0,
            value - 0.5,
            -value,
            value + 3,
            0.1,
            40.0,
            0.0,
        )
    else:
        found = (value + 1, value - 1, 2 * value, 0, 1, 2, 3, 5, 8, -1, 12)
    return [each for each in dict.fromkeys(found) if each != value]


def changed(layer: Message, path: str, folder: str) -> Iterator[Any]:
    """The layer with each other value of a field, in place; yields the value."""
    *heads, last = path.split(".")
    holder = layer
    for head in heads:
        holder.SetInParent()
        inner = getattr(holder, head)
        holder = (inner or [inner.add()])[0] if hasattr(inner, "add") else inner
    field = holder.DESCRIPTOR.fields_by_name[last]
    own = getattr(holder, last)
    if hasattr(own, "extend"):
        before = list(own)
        start = before[-1] if before else 0
        others = values_for(field, start if before or field.message_type is None else None)
        sets = [[*before[:-1], each] for each in others] + [
            [*before, each] for each in [start, *others] if before
        ]
        if len(before) < 2:
            sets += [[each] * 2 for each in others[:3]] + [[each] * 4 for each in others[:3]]
        for each in sets:
            del own[:]
            try:
                own.extend(each)
            except (ValueError, TypeError):
                continue
            yield each
        return
    for each in values_for(field, own):
        if isinstance(each, str):
            each = each.replace("FOLDER", folder)
        try:
            if field.message_type is not None:
                own.CopyFrom(each)
            else:
                setattr(holder, last, each)
        except (ValueError, TypeError):  # of a number that the field cannot hold
            continue
        yield each


def parsed(row: Row, folder: str) -> Any:
    """The row's net, which asks for all gradients."""
    return parse_text("force_backward: true\n" + row.text.replace("FOLDER", folder), NetParameter)


def seen(param: Any, row: Row, heard: Heard) -> dict[Any, bytes] | None:
    """What two passes show, or None for a net that is refused; `heard` has the messages."""
    heard.lines.clear()
    net = None
    found: dict[Any, Any] = {}
    try:
        net = Net(param, phase=row.phase, backend=Cpu(), seed=1, inspectable=True)
        _run(net, row, found)
    except UserError as error:
        heard.lines.append(str(error))
        return None
    finally:
        for layer in net.layers if net else ():
            getattr(layer, "close", lambda: None)()
    return {key: repr(each.shape).encode() + each.tobytes() for key, each in found.items()}


def _run(net: Net, row: Row, found: dict[Any, Any]) -> None:
    read = net.backend.read
    learned = [
        (layer.name, i, blob) for layer in net.layers for i, blob in enumerate(layer.parameters)
    ]
    for name, i, blob in learned:
        found["first", name, i] = read(blob.data).copy()
    if row.type == "MemoryData":
        _give_images(net)
    random = np.random.default_rng(2)
    for step in range(2):
        for name, values in row.values.items():
            moved = step and name == next(iter(row.values)) and values.ndim
            net.write(name, np.roll(values, 1, axis=0) if moved else values)
        net.forward()
        for name in net.outputs:
            found["output", step, name] = net.read(name).copy()
        if step or not net.programs[1]:
            continue
        for name in net.outputs:
            diff = net.blobs[name].diff
            if not net.loss_weight(name) and diff.array is not None:
                net.backend.write(diff, random.standard_normal(diff.shape))
        net.backward()
        diffs = {name: net.blobs[name].diff for name in row.values}
        diffs |= {(name, i): blob.diff for name, i, blob in learned}
        for key, diff in diffs.items():
            if diff.array is not None:
                found["gradient", key] = read(diff).copy()
    for name, i, blob in learned:
        found["last", name, i] = read(blob.data).copy()


def _give_images(net: Net) -> None:
    layer: Any = net.layers[0]
    param = layer.param
    channels, extents = layer.shape[0], layer.shape[1:]
    if param.transform_param.crop_size:
        extents = (9, 9)
    images = np.random.default_rng(3).integers(256, size=(2 * layer.batch_size, channels, *extents))
    layer.add_images(images.astype(np.uint8), np.zeros(len(images)))


def outcome(bases: list[tuple[Row, dict[Any, bytes]]], path: str, folder: str, heard: Heard) -> str:
    """What a field of the layer `op` does: "" if it acts (by another result, or as something else
    does not fit it) or is told, else what shows that it is dropped."""
    names = path.split(".")[1:]  # or it is told of the whole message within the settings
    word = re.compile(rf"\b({'|'.join(names)})\b")
    silent: dict[str, str] = {}
    told = set()
    for row, base in bases:
        param = parsed(row, folder)
        layer = next(each for each in param.layer if each.name == "op")
        for value in changed(layer, path, folder):
            found = seen(type(param).FromString(param.SerializeToString()), row, heard)
            named = any(word.search(line) for line in heard.lines)
            if found != base and not (found is None and named):
                return ""
            if named:
                told.add(repr(value))
            else:
                silent.setdefault(repr(value), row.text)
    # What is told in one net, and is the same as what was in another one, is not dropped.
    dropped = [f"{value} in {text}" for value, text in silent.items() if value not in told]
    return "".join(dropped[:1]) or ("" if told else "no value is tried")
