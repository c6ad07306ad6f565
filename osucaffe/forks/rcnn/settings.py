"""How settings in a param_str are read: the part of YAML that Python layers' nets use.

Mappings and lists, in brackets or on lines of their own, quoted and plain text, numbers, and the
tags of plain values, such as !!python/tuple. Two of Python's forms besides: tuples in parentheses,
and pairs on one line with commas. What builds objects, or refers to other parts, is refused.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

MAX_LETTERS, MAX_DEPTH = 1 << 16, 20

_TOKEN = re.compile(
    r"""[ \t\r]+ | (?P<line>\n) | \#[^\n]* | ---(?=\s)
    | (?P<quoted>'(?:[^']|'')*' | "(?:[^"\\]|\\.)*")
    | (?P<mark>[][{}(),:] | -(?=\s|$))
    | (?P<tag>![^\s,\[\]{}()]*)
    | (?P<plain>(?:[^\s,\[\]{}():'"&*|>%@]|:(?!\s|$))(?:[^\n,\[\]{}():\#]|(?<!\s)\#|:(?!\s|$))*)""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
_WORDS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("null", "none", "~"), None),
}
_TAGS = ("python/tuple", "python/list", "python/dict", "seq", "map", "str", "int", "float", "bool")
_CLOSING = {"[": "]", "(": ")", "{": "}"}


class _Token(NamedTuple):
    text: str
    kind: str
    column: int
    begins_line: bool


def read_settings(text: str) -> Any:
    """The value of a param_str, of dictionaries, lists, text, numbers, booleans, None. ValueError
    for what is not of this form."""
    if len(text) > MAX_LETTERS:
        raise ValueError(f"has {len(text)} letters, more than {MAX_LETTERS}")
    reader = _Reader(text)
    value = reader.node(0, 0)
    if reader.token is not None:
        raise ValueError(f"{reader.token.text!r} does not belong there")
    return value


class _Reader:
    """Reads one token after the other; `token` is the next one."""

    def __init__(self, text: str) -> None:
        self._tokens: list[_Token] = []
        self._next = place = line = 0
        begins = True
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None:
                raise ValueError(f"{text[place]!r} is not supported here")
            kind = match.lastgroup or ""
            if kind == "line":
                line, begins = match.end(), True
            elif kind == "tag":
                if match[0].lstrip("!") not in _TAGS:
                    raise ValueError(f"{match[0]!r} is not a tag of a plain value")
            elif kind:
                self._tokens.append(_Token(match[0].rstrip(), kind, place - line, begins))
            begins = begins and kind in ("", "line")
            place = match.end()

    @property
    def token(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _is(self, *marks: str) -> bool:
        token = self.token
        return token is not None and token.kind == "mark" and token.text in marks

    def _take(self, *marks: str) -> str:
        """The next token, which must be one of these marks, or no mark."""
        token = self.token
        if token is None or (token.kind == "mark" and token.text not in marks):
            found = "the end" if token is None else repr(token.text)
            raise ValueError(
                f"expected {' or '.join(map(repr, marks)) or 'a value'}, found {found}"
            )
        self._next += 1
        return token.text

    def node(self, column: int, depth: int) -> Any:
        """A value on lines of its own, from this column on: None if there is none."""
        token = self.token
        if token is None or (token.begins_line and token.column < column):
            return None
        if depth > MAX_DEPTH:
            raise ValueError(f"is more than {MAX_DEPTH} levels deep")
        if self._is("-"):
            return self._list(token.column, depth + 1)
        value = self._flow(depth)
        if not self._is(":") or isinstance(value, list | dict):
            return value
        return self._mapping(value, token.column, depth + 1)

    def _list(self, column: int, depth: int) -> list[Any]:
        """The items at a column, each after a dash."""
        items = []
        while self._is("-") and self._tokens[self._next].column == column:
            self._next += 1
            items.append(self.node(column + 1, depth))
        return items

    def _mapping(self, key: Any, column: int, depth: int) -> dict[Any, Any]:
        """The pairs at a column, or on a line with commas, of which the first key has been read."""
        pairs: dict[Any, Any] = {}
        while True:
            self._take(":")
            token = self.token
            if token is not None and not token.begins_line:
                pairs[key] = self._flow(depth)
            else:
                pairs[key] = self.node(column if self._is("-") else column + 1, depth)
            goes_on = self._is(",")
            self._next += goes_on
            token = self.token
            if token is None or not (goes_on or (token.begins_line and token.column == column)):
                return pairs
            key = self._scalar()

    def _flow(self, depth: int) -> Any:
        """A value in brackets, or a plain one."""
        if not self._is(*_CLOSING):
            return self._scalar()
        if depth > MAX_DEPTH:
            raise ValueError(f"is more than {MAX_DEPTH} levels deep")
        opening = self._take(*_CLOSING)
        closing = _CLOSING[opening]
        pairs: dict[Any, Any] = {}
        items = []
        while not self._is(closing):
            if opening == "{":
                key = self._scalar()
                self._take(":")
                pairs[key] = self._flow(depth + 1)
            else:
                items.append(self._flow(depth + 1))
            if not self._is(closing):
                self._take(",")
        self._take(closing)
        return pairs if opening == "{" else items

    def _scalar(self) -> Any:
        """Text, a number, a truth value or nothing."""
        text = self._take()
        if text[0] in "'\"":
            quote, inner = text[0], text[1:-1]
            return inner.replace("''", "'") if quote == "'" else re.sub(r"\\(.)", r"\1", inner)
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if not _NUMBER.fullmatch(text):
            return text
        return int(text) if text.lstrip("+-").isdecimal() and len(text) < 20 else float(text)
