"""Reading a pickle as data: plain values, arrays of bytes, and PyTorch's tensors. Nothing that
it names is imported or called."""

from __future__ import annotations

import pickletools
from typing import IO, Any

import numpy as np

_LONGEST = 1_000_000
"""Instructions that are followed; a file of CIFAR-10 has 30,000."""
_KEY = 100
"""Characters of the longest key of a dict."""
_VALUES = {
    *("NONE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
    *("FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE"),
    *("SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
"""Instructions that only bring a value."""
_FUNCTIONS = {
    **{f"numpy.{core}.multiarray _reconstruct": "array" for core in ("core", "_core")},
    **{f"numpy.{core}.numeric _frombuffer": "buffer" for core in ("core", "_core")},
    "numpy ndarray": "type",
    "numpy dtype": "dtype",
    "_codecs encode": "bytes",  # of text, which stands for Latin-1 here anyway
    "collections OrderedDict": "dict",
    "torch._utils _rebuild_tensor_v2": "tensor",
    "torch FloatStorage": "<f4",
    "torch LongStorage": "<i8",
}
"""What a pickle of arrays names, and what it stands for here."""


class PickledArray:
    """An array as its pickle has it: version, shape, type, whether in Fortran's order, content."""

    state: Any = None

    def uint8(self) -> np.ndarray:
        """Its values. ValueError where they are of another type, or do not fit its shape."""
        try:
            _, shape, dtype, fortran, content = self.state
            if isinstance(content, str):
                content = content.encode("latin-1")
            if dtype in ("u1", b"u1"):
                values = np.frombuffer(content, np.uint8)
                return values.reshape(shape, order="F" if fortran else "C")
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"its array is damaged ({error})") from error
        raise ValueError("its array is not one of bytes (uint8)")


def read_pickle(content: bytes | IO[bytes]) -> Any:
    """What it holds: numbers, text (bytes or str, as written), lists, tuples, dicts whose keys are
    str, and PickledArray; of a tensor of PyTorch's the tuple that it is rebuilt of: its storage (a
    tuple), offset, shape, strides. ValueError for anything else, or where it is damaged or too
    long. A file is left behind the pickle's end."""
    try:
        return _read(content)
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a damaged pickle ({type(error).__name__})") from error


def _read(content: bytes | IO[bytes]) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def pop_marked() -> list[Any]:
        at = marks.pop()
        items = stack[at:]
        del stack[at:]
        return items

    for count, (opcode, value, _) in enumerate(pickletools.genops(content)):
        if count > _LONGEST:
            raise ValueError(f"a pickle of more than {_LONGEST:,} instructions")
        match opcode.name:
            case name if name in _VALUES:
                stack.append(value)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode.name == "NEWTRUE")
            case "PROTO" | "FRAME" | "BINPERSID":  # the tuple that is a storage's name stays
                pass
            case "MARK":
                marks.append(len(stack))
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                length = int(opcode.name[-1])
                stack[-length:] = [tuple(stack[-length:])]
            case "TUPLE":
                stack.append(tuple(pop_marked()))
            case "APPEND":
                item = stack.pop()
                stack[-1].append(item)
            case "APPENDS":
                items = pop_marked()
                stack[-1].extend(items)
            case "SETITEM":
                items = [stack.pop(), stack.pop()]
                _set(stack[-1], items[::-1])
            case "SETITEMS":
                items = pop_marked()
                _set(stack[-1], items)
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[value] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[value])
            case "GLOBAL":
                stack.append(_function(value))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_function(" ".join((module, name))))
            case "REDUCE":
                arguments = stack.pop()
                stack.append(_call(stack.pop(), arguments))
            case "BUILD":
                state = stack.pop()
                if isinstance(stack[-1], PickledArray):
                    stack[-1].state = state
            case "STOP":
                return stack.pop()
            case other:
                raise ValueError(f"a pickle with the instruction {other}")
    raise ValueError("a pickle without an end")


def _set(target: dict[str, Any], items: list[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
        if len(key) > _KEY:  # nor is any other one hashed again and again
            raise ValueError(f"a key of {len(key):,} characters")
        target[key if isinstance(key, str) else key.decode("latin-1")] = value


class _Function(str):
    """One of the values of _FUNCTIONS."""


def _function(name: Any) -> _Function:
    if name not in _FUNCTIONS:
        raise ValueError(f"it asks for {name.replace(' ', '.'):.80}")
    return _Function(_FUNCTIONS[name])


def _call(function: Any, arguments: Any) -> Any:
    if not isinstance(function, _Function):
        raise ValueError("a pickle that calls a value")
    if function == "array":
        return PickledArray()
    if function == "dict":
        return {}
    if function == "tensor":
        return tuple(arguments)
    if function == "buffer":
        content, dtype, shape, order = arguments
        array = PickledArray()
        array.state = 1, shape, dtype, order in ("F", b"F"), content
        return array
    return arguments[0]
