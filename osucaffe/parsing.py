"""What text from files says: its lines, numbers, names and JSON, with one checked
conversion for each. What is none raises ValueError, whose text quotes it.

Python's own conversions take more than files may hold: `1_000`, digits of any script, numbers that
no array has, and nesting that ends in other errors, or in the process's end.
"""

from __future__ import annotations

import io
import json
import math
import re
from typing import Any

INT32 = -(1 << 31), (1 << 31) - 1
_FLOAT32 = 3.4028234663852886e38
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")


def lines_of(content: bytes) -> list[str]:
    """The lines of a text, whose ends may be of any system, without a byte order mark. Bytes that
    are not UTF-8 stay what they are to the file system: a name is opened as it lies there."""
    text = io.StringIO(content.decode("utf-8-sig", "surrogateescape"), newline=None)
    return [line.removesuffix("\n") for line in text]


def as_int(value: object, least: int = INT32[0], most: int = INT32[1]) -> int:
    """A whole number from `least` to `most`, as text or as JSON has it."""
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str):
        text = int(text) if _WHOLE.fullmatch(text) else None
    if not isinstance(text, int) or isinstance(text, bool):
        raise ValueError(f"{_quoted(value)} is not an integer")
    if not least <= text <= most:
        raise ValueError(f"{_quoted(value)} is not from {least} to {most}")
    return text


def as_float(value: object) -> float:
    """A finite number that float32 holds, as text or as JSON has it."""
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str):
        text = float(text) if _NUMBER.fullmatch(text) else None
    if not isinstance(text, int | float) or isinstance(text, bool):
        raise ValueError(f"{_quoted(value)} is not a number")
    if not abs(text) <= _FLOAT32:
        raise ValueError(f"{_quoted(value)} is not a number that float32 holds")
    return float(text)


def as_name(value: object) -> str:
    """A name of a file or a class: text of one line, without control characters."""
    if not isinstance(value, str) or not value or any(each < " " for each in value):
        raise ValueError(f"{_quoted(value)} is not a name")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{_quoted(value)} is not a name: it is not Unicode") from None
    return value


def from_json(content: str | bytes) -> Any:
    """What JSON says. It may be nested as deeply as Python's own limit lets it."""
    try:
        return json.loads(content, parse_int=lambda text: as_int(text, -(1 << 63), (1 << 64) - 1))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _quoted(value: object) -> str:
    """A value for a message. (Of a whole number Python refuses to print 4,300 digits.)"""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"a number of {math.floor(value.bit_length() * math.log10(2)) + 1:,} digits"
    text = value if isinstance(value, str) else repr(value)
    return f'"{text}"' if len(text) <= 80 else f'"{text[:80]}..."'
