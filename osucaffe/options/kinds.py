"""The kinds of values that options have: how their texts are checked and converted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import plugins
from ..errors import UserError

Parse = Callable[[str], Any]
_LARGEST = 2**31 - 1


class Kind(NamedTuple):
    """A kind of value: its name in help pages, its parser, and how a value is shown."""

    metavar: str
    parse: Parse = str
    show: Callable[[Any], str] = str


def _called(name: str) -> Callable[[Parse], Parse]:
    """Sets the name of a value in argparse's messages."""

    def rename(parse: Parse) -> Parse:
        parse.__name__ = name
        return parse

    return rename


def integer(least: int, most: int = _LARGEST) -> Parse:
    """An integer within these bounds; by default, one that fits a field of a prototxt."""

    @_called("whole number")
    def parse(text: str) -> int:
        if (value := int(text)) < least:
            raise UserError(f"must be at least {least}, not {value}")
        if value > most:
            raise UserError(f"must be at most {most}, not {value}")
        return value

    return parse


positive, extent = integer(1), integer(0)


@_called("number")
def not_negative(text: str) -> float:
    """A finite number of at least 0."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise UserError(f"must be at least 0, and finite, not {text}")
    return value


@_called("share")
def share(text: str) -> float:
    """A fraction between 0 and 1."""
    if not 0 < (value := float(text)) < 1:
        raise UserError(f"must be above 0 and below 1, not {text}")
    return value


def names(text: str) -> list[str]:
    """The items of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def stages(text: str) -> list[str]:
    """Names that a net may have: text, not arbitrary bytes."""
    if not text.isprintable():
        raise UserError("has letters that no name has")
    return names(text)


def files(text: str) -> list[str]:
    """A comma-separated list of at least one file."""
    if not (files := names(text)):
        raise UserError("names no file")
    return files


@_called("list of numbers")
def integers(text: str) -> list[int]:
    """Comma-separated integers."""
    return [int(part) for part in names(text)]


@_called("list of numbers")
def numbers(text: str) -> list[float]:
    """Comma-separated numbers, one or three."""
    if len(values := [float(part) for part in names(text)]) not in (1, 3):
        raise UserError(f"must be one number or three, not {text!r}")
    return values


@_called("list of numbers")
def extents(text: str) -> list[int]:
    """Height and width."""
    if len(numbers := integers(text)) != 2 or min(numbers) < 1:
        raise UserError(f"must be height,width, not {text!r}")
    return numbers


@_called("shape")
def shape(text: str) -> list[int]:
    """The extents of an image."""
    if min(numbers := integers(text), default=0) < 1:
        raise UserError(f"must be channels,height,width, not {text!r}")
    return numbers


def character(text: str) -> str:
    """A single character."""
    if len(text) != 1:
        raise UserError(f"must be one character, not {text!r}")
    return text


def auto_or(parse: Parse, auto: Any = "auto", name: str = "") -> Parse:
    """A value of another kind, or what "auto" stands for."""
    return _called(name or parse.__name__)(lambda text: auto if text == "auto" else parse(text))


def named(group: str, *words: str) -> Parse:
    """One of these words, or what a plug-in of a group has (`plugins.py`)."""

    @_called("name")
    def parse(text: str) -> str:
        if text in words or plugins.is_place(text) or text in plugins.names(group):
            return text
        raise UserError(f"must be {', '.join(words)} or a module:Class, not {text}")

    return parse


COUNT = Kind("N", positive)
EXTENT = Kind("N", extent)
INTEGER = Kind("N", int)
SECONDS = Kind("S", not_negative)
MEGABYTES = Kind("MB", not_negative)
