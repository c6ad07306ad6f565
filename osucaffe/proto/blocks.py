"""Owns which block of a prototxt lacks its closing brace: a parser notices only far behind it."""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(r"#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[{}\n]|[^\s{}\"'#]+")


class Block(NamedTuple):
    """A block that is open: the field before its brace, where that stands, its indent (None where
    other text stands before it in its line), and the blocks that it is in, the outermost first."""

    name: str
    line: int
    indent: int | None
    inside: tuple[str, ...]


def unclosed(text: str, line: int) -> Block | None:
    """The block that lacks its brace, where a parser stumbled in this line (counted from 1).

    Indentation tells, as it does to a reader: a block in whose column, or left of it, another field
    starts, or left of which a brace closes, should have ended before. Where it tells nothing, and
    at the end of the text, this is the innermost block that is open there; None where none is.
    """
    open_blocks: list[Block] = []
    number, start = 1, 0
    word: tuple[str, int, int | None] = ("", 1, None)
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token == "\n":
            number, start = number + 1, found.end()
            if number > line:
                told = open_blocks and open_blocks[-1].indent is not None
                return None if told else next(reversed(open_blocks), None)
            continue
        if token.startswith("#"):
            continue
        indent = found.start() - start
        begins = not text[start : found.start()].strip()
        top = open_blocks[-1] if open_blocks else None
        if begins and token != "{" and top and top.indent is not None:
            needed = top.indent + (token != "}")  # a brace may stand in the column of its block
            if indent < needed:
                return top
        if token == "{":
            open_blocks.append(Block(*word, tuple(each.name for each in open_blocks)))
        elif token == "}":
            if open_blocks:
                open_blocks.pop()
        else:
            word = (token.rstrip(":"), number, indent if begins else None)
    return next(reversed(open_blocks), None)
