"""Prototxt: text to messages, with errors that say where and what, and messages to text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from google.protobuf import descriptor_pool, text_format
from google.protobuf.message import Message

from ..errors import UserError, nearest
from ..files import read_bytes, write_bytes
from .caffe_pb2 import SolverParameter

AnyMessage = TypeVar("AnyMessage", bound=Message)

_WHOLE_FLOAT = re.compile(r"^( *\w+: -?\d+)\.0$", re.MULTILINE)  # 1.0, where Caffe prints 1
_UNKNOWN_FIELD = re.compile(r'Message type "(\S+)" has no field named "(\S+)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "(\S+)" has no value (?:named|with number) (\S+?)\.?$')
_CONFUSED = {
    "NetParameter": ("SolverParameter", "a solver's"),
    "SolverParameter": ("NetParameter", "a net's"),
}
"""Files that are given for one another: the messages in them, and whose prototxt it may be."""
_DEVICES = re.compile(r"^([ \t]*device_id\s*:\s*)\[\s*(\d++)[\d\s,]*+\]", re.MULTILINE)
"""A list of devices, where Caffe has one number: TSN's Caffe takes one for each process."""
_GIVEN_TWICE = re.compile(r'Message type "(\S+)" should not have multiple "(\S+)" fields')
_QUOTED_NUMBER = re.compile(r"""Couldn't parse \w+: (["']([-+\d.e]+)["'])""")
_TOKEN = re.compile(r"#[^\n]*|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?|[{}\n]|[^\s{}\"'#]+")
_MAY_BE_NULL = re.compile(r"\0|\\(?:0|x0)")
_MINUS = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|-(\s+)(?=[.\d])""")
"""A minus apart from its number, which Caffe's parser takes; or what may contain one."""
_BACKSLASHES = re.compile(r"\\{256,}")
"""Google's parser takes time with the square of their number."""


def _as_latin_1(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error("or-latin-1", _as_latin_1)


def decode(content: bytes) -> str:
    """Text of any encoding, which is all one to Caffe: what is not UTF-8 is taken for Latin-1.

    So nothing is lost, and a name is the same in a prototxt and in a model file.
    """
    return content.decode("utf-8-sig", "or-latin-1")


def parse_text(text: str, message_type: type[AnyMessage], name: str = "text") -> AnyMessage:
    """The message that this prototxt describes.

    name: what the text is called in an error, usually its file.
    Raises UserError "name:line:column: what is wrong", columns counted from 1.
    """
    message = message_type()
    if message_type is SolverParameter:  # --gpu says where a run goes, so the first will do
        text = _DEVICES.sub(lambda found: found[1] + found[2] + "\n" * found[0].count("\n"), text)
    if found := _BACKSLASHES.search(text):
        place = f"{name}:{text.count(chr(10), 0, found.start()) + 1}"
        raise UserError(f"{place}: {len(found[0]):,} backslashes in a row cannot be part of a net")
    if re.search(r":\s*-\s", text):
        text = _MINUS.sub(lambda found: f"{found[1]}-" if found[1] else found[0], text)
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        place = f"{name}:{error.GetLine()}:{error.GetColumn()}"
        told = _without_brace(error, text, message_type) or _explain(error, text)
        raise UserError(f"{place}: {told}{_mixed(text, told)}") from None
    if not message.IsInitialized():
        missing = message.FindInitializationErrors()[0]  # type: ignore[attr-defined]
        raise UserError(f"{name}: {missing} is not given, and has no default")
    if _MAY_BE_NULL.search(text) and (field := _with_null(message)):
        raise UserError(
            f"{name}: {field} has a character of value 0, which no name and no path has"
        )
    return message


def _with_null(message: Message) -> str | None:
    """The first field of text that has a character of value 0, where files' names end in C."""
    for field, value in message.ListFields():
        parts = (
            value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
        )
        for each in parts:
            if isinstance(each, str) and "\0" in each:
                return field.name
            if isinstance(each, Message) and (found := _with_null(each)):
                return found
    return None


def read_text(path: str | Path, message_type: type[AnyMessage]) -> AnyMessage:
    """The message in a prototxt file, of any encoding (comments in GBK, say). Raises UserError."""
    content = read_bytes(path)
    if b"\0" in content:
        raise UserError(
            f"{path}: not a text file; give a .prototxt here, and a binary model as weights"
        )
    return parse_text(decode(content), message_type, str(path))


def format_text(message: Message) -> str:
    """The message as Caffe prints it: a field a line, floats in the fewest digits that suffice."""
    text = text_format.MessageToString(message, as_utf8=True)
    return _WHOLE_FLOAT.sub(r"\1", text)


def write_text(path: str | Path, message: Message) -> None:
    """Write a prototxt file, whole or not at all. Raises UserError."""
    write_bytes(path, format_text(message).encode())


def _mixed(text: str, told: str) -> str:
    """A hint where what the parser told is of a net that has layers of both forms, or types of the
    other one."""
    new, old = (
        re.search(rf"^[ \t]*{word}[ \t]*:?\s*+{{", text, re.MULTILINE)
        for word in ("layer", "layers")
    )
    if new and old:
        return ' (the net has both "layer" and old "layers" fields: use one form for all)'
    if old and '"' in told and "for LayerType" in told:
        return ' (types in quotes belong in "layer", those of "layers" are such as RELU)'
    if new and re.match(r"expected string but found: '[A-Z]", told):
        return ' (types without quotes belong in old "layers", those of "layer" are such as "ReLU")'
    return ""


def _explain(error: text_format.ParseError, text: str) -> str:
    """The parser's message without its repeated place and line, with the nearest known name."""
    words = re.sub(r"^\d+:\d+ : ", "", str(error))
    if match := _UNKNOWN_FIELD.search(words):
        return _unknown_field(*match.groups())
    if match := _UNKNOWN_VALUE.search(words):
        enum = descriptor_pool.Default().FindEnumTypeByName(match[1])
        known = ", ".join(value.name for value in enum.values)
        return f"unknown value {match[2]} for {enum.name} (one of {known})"
    if match := _GIVEN_TWICE.search(words):
        return f'"{match[2]}" is given more than once in {match[1].rpartition(".")[2]}'
    lines = text.removesuffix("\n").split("\n")
    number = error.GetLine() or 0
    if 0 < number <= len(lines):
        words = words.removeprefix(f"'{lines[number - 1]}': ")
    words = words.removeprefix("'': ").rstrip(".")
    if match := _QUOTED_NUMBER.match(words):
        return f"{match[1]} is text, but a number belongs here: write {match[2]} without the quotes"
    at_end = number >= len(lines) and words == 'Expected "}"'
    return words[:1].lower() + words[1:] + (", found the end of the file" if at_end else "")


def _without_brace(error: text_format.ParseError, text: str, root: type[Message]) -> str:
    """Which block lacks its brace, if that is why the parser stumbled: it did so at the end of the
    file, or at a field that belongs in a block further out."""
    line, unknown = error.GetLine() or 0, _UNKNOWN_FIELD.search(str(error))
    at_end = 'Expected "}"' in str(error) and line >= len(text.removesuffix("\n").split("\n"))
    blocks = _unclosed(text.rstrip(), line) if unknown or at_end else []
    if not blocks or (unknown and not _outside(blocks, unknown[2], root)):
        return ""
    found = f'field "{unknown[2]}"' if unknown else "the end of the file"
    name, begun, _ = blocks[-1]
    return f'found {found} in the block "{name}" of line {begun}: its "}}" is missing'


class _Block(NamedTuple):
    """A block that is open: the field before its brace, where that stands, and its indent (None
    where other text stands before it in its line)."""

    name: str
    line: int
    indent: int | None


def _unclosed(text: str, line: int) -> list[_Block]:
    """The block that lacks its brace, where a parser stumbled in this line (counted from 1), after
    those that it is in, the outermost first.

    Indentation tells, as it does to a reader: a block in whose column, or left of it, another field
    starts, or left of which a brace closes, should have ended before. Where it tells nothing, and
    at the end of the text, this is the innermost block that is open there; none where none is.
    """
    blocks: list[_Block] = []
    number, start, begins = 1, 0, True
    word = _Block("", 1, None)
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token == "\n":
            number, start, begins = number + 1, found.end(), True
            if number > line:
                return [] if blocks and blocks[-1].indent is not None else blocks
            continue
        if token.startswith("#"):
            continue
        indent = found.start() - start if begins else None
        begins = False
        top = blocks[-1] if blocks else None
        if indent is not None and token != "{" and top and top.indent is not None:
            needed = top.indent + (token != "}")  # a brace may stand in the column of its block
            if indent < needed:
                return blocks
        if token == "{":
            blocks.append(word)
        elif token == "}":
            if blocks:
                blocks.pop()
        else:
            word = _Block(token.rstrip(":"), number, indent)
    return blocks


def _outside(blocks: Sequence[_Block], field: str, root: type[Message]) -> bool:
    """Whether a field belongs in one of the blocks that the last one is in."""
    message = root.DESCRIPTOR
    for block in blocks:
        if field in message.fields_by_name:
            return True
        child = message.fields_by_name.get(block.name)
        if child is None or child.message_type is None:
            return False
        message = child.message_type
    return False


def _unknown_field(message_name: str, field: str) -> str:
    message = descriptor_pool.Default().FindMessageTypeByName(message_name)
    said = f'unknown field "{field}" in {message.name}'
    if message.name in _CONFUSED:
        other, whose = _CONFUSED[message.name]
        if field in message.file.message_types_by_name[other].fields_by_name:
            return f"{said}: is this {whose} prototxt?"
    inside = [
        child.name
        for child in message.fields
        if child.message_type is not None and field in child.message_type.fields_by_name
    ]
    if 0 < len(inside) <= 4:
        return f"{said} (it belongs in {' or '.join(inside)})"
    near = nearest(field, message.fields_by_name)
    return f'{said} (did you mean "{near}"?)' if near else said
