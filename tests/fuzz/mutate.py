"""How inputs are changed: bytes, text by its words, messages by their fields. What comes out
depends on the random generator alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Any

from google.protobuf.message import Message

NUMBERS = (
    *(0, 1, -1, 2, 3, 4, 7, 8, 16, 100, 127, 128, 255, 256, 1000, 32767, 65535, 65536),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -(2**31), -(2**63), 10**30),
)
WORDS = ("nan", "inf", "-inf", "1e38", "-1e-38", "1e400", "0.5", "true", "MAX", '""', "{", "}", "[")
STEERING = (
    "\x1b[2J",
    "\u202eb",
    "a\nI1129 03:00:00.000000  1 a.py:1] b",
    "\x9b1m",
    "=1+1",
    "$\\frac{$",
    "[/b]",
)
"""Of names: what steers a terminal, forges a line of a log, begins a formula, or is markup."""
STRINGS = (
    *("", "a", "x" * 300, "\0", "é", "data", "/dev/null", "/dev/zero", "a/b", "%s"),
    *STEERING,
)
_TOKEN = re.compile(rb'"[^"\n]*"|[\w.+-]+|\s+|.', re.DOTALL)


def mutate_bytes(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change a few places; now and then join the content to another's end."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 4, 8))):
        size = len(data)
        at = random.randrange(size + 1)
        choice = random.randrange(9)
        if choice <= 1 and at < size:
            data[at] ^= 1 << random.randrange(8)
        elif choice == 2 and at < size:
            data[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        elif choice == 3:
            width = random.choice((1, 2, 4, 8))
            number = random.choice(NUMBERS) % (1 << 8 * width)
            data[at : at + width] = number.to_bytes(width, random.choice(("little", "big")))
        elif choice == 4:
            data[at:at] = random.randbytes(random.randrange(1, 9))
        elif choice == 5:
            del data[at : at + random.randrange(1, 33)]
        elif choice == 6:
            start = random.randrange(size + 1)
            data[at:at] = data[start : start + random.randrange(1, 65)]
        elif choice == 7 and random.random() < 0.3:
            del data[at:]
        elif choice == 8 and random.random() < 0.3:
            other = random.choice(others)
            data[at:] = other[random.randrange(len(other) + 1) :]
    return bytes(data)


def mutate_text(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change a few words, and now and then bytes."""
    if random.random() < 0.1:
        return mutate_bytes(random, content, others)
    tokens = _TOKEN.findall(content) or [b" "]
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        at = random.randrange(len(tokens))
        choice = random.randrange(8)
        if choice <= 3:  # a number or a word, if one is near
            for place in range(at, min(at + 20, len(tokens))):
                if not tokens[place].isspace() and tokens[place] not in b"{}:":
                    tokens[place] = _word(random, tokens[place])
                    break
        elif choice == 4:
            del tokens[at : at + random.randrange(1, 6)]
            tokens = tokens or [b" "]
        elif choice == 5:
            other = random.randrange(len(tokens))
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif choice == 6:
            tokens[at:at] = tokens[at : at + random.randrange(1, 40)]
        else:
            borrowed = _TOKEN.findall(random.choice(others)) or [b" "]
            start = random.randrange(len(borrowed))
            tokens[at:at] = borrowed[start : start + random.randrange(1, 20)]
    return b"".join(tokens)


def _word(random: Random, old: bytes) -> bytes:
    if old.startswith(b'"'):
        told = random.choice(STRINGS).encode("unicode_escape").decode().replace('"', "")
        return f'"{told}"'.encode()
    if random.random() < 0.7:
        return str(random.choice(NUMBERS)).encode()
    return random.choice(WORDS).encode()


def deepen(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Repeat a few words of a text very often: it is nested deeply, or has a word without end."""
    tokens = _TOKEN.findall(content) or [b" "]
    at = random.randrange(len(tokens))
    part = b"".join(tokens[at : at + random.choice((1, 1, 2, 3, 5, 8))])
    if random.random() < 0.3:
        part = random.choice(_REPEATED)
    repeated = part * (int(10 ** random.uniform(1, 5.3)) // max(len(part), 1))
    return (
        b"".join(tokens[:at]) + repeated + b"".join(tokens[random.choice((at, at, len(tokens))) :])
    )


_REPEATED = (
    *(
        b"layer { ",
        b"layer {\n",
        b"{",
        b"[",
        b"(",
        b"-",
        b"<a>",
        b'"',
        b"\\",
        b'\\"',
        b"9",
        b"x",
        b"\n",
    ),
    *(b" ", b"1,", b"device_id: [", b" = 1 (*", b"#\n", b": ", b"e1", b"&lt;", b"a b "),
)


def mutate_message(random: Random, message: Message, wildness: float = 0.3) -> None:
    """Set, add to, or clear a few fields of the message, or of one inside.

    wildness: which part of numbers is extreme; the others are small.
    """
    for _ in range(1 << random.randrange(3)):
        _mutate_field(random, _inner(random, message), wildness)


def _inner(random: Random, message: Message) -> Message:
    inside = [message]
    for part in inside:
        for field, value in part.ListFields():
            if field.message_type is not None:
                inside += [value] if isinstance(value, Message) else list(value)
    return random.choice(inside)


def _mutate_field(random: Random, message: Message, wildness: float) -> None:
    kind = message.DESCRIPTOR
    fields = [field for field in kind.fields if field.name not in ("python_param", "type")]
    field = random.choice(fields)
    given = [each for each, _ in message.ListFields() if each in fields]
    if given and random.random() < 0.5:
        field = random.choice(given)
    if random.random() < 0.15:
        message.ClearField(field.name)
    else:
        set_field(random, message, field, wildness)


def set_field(random: Random, message: Message, field: Any, wildness: float) -> None:
    """Give a field of the message a value, or one more."""
    value = getattr(message, field.name)
    repeated = not isinstance(value, Message | str | bytes | int | float | bool)
    if field.message_type is not None:
        inner = value.add() if repeated else value
        inner.SetInParent()
        for each in inner.DESCRIPTOR.fields:
            if random.random() < 0.3 and each.message_type is None:
                set_field(random, inner, each, wildness)
        return
    drawn = _value(random, field, wildness)
    if not repeated:
        setattr(message, field.name, drawn)
    elif value and random.random() < 0.5:
        value[random.randrange(len(value))] = drawn
    else:
        value.extend([drawn] * random.choice((1, 1, 2, 3)))


def _value(random: Random, field: Any, wildness: float) -> Any:
    wild = random.random() < wildness
    kind = field.cpp_type
    if kind == field.CPPTYPE_ENUM:
        return random.choice(field.enum_type.values).number
    if kind == field.CPPTYPE_BOOL:
        return random.random() < 0.5
    if kind == field.CPPTYPE_STRING:
        text = random.choice(STRINGS) if wild else random.choice(("a", "x", "y", "gaussian"))
        return text.encode() if field.type == field.TYPE_BYTES else text
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        extreme = (float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-38, 0.0, -1.0)
        return random.choice(extreme if wild else (0.1, 0.5, 1.0, 2.0, 4.0, 16.0))
    bits = 32 if "32" in str(_INTEGERS[kind]) else 64
    signed = not _INTEGERS[kind].startswith("u")
    number = random.choice(NUMBERS) if wild else random.choice((0, 1, 1, 2, 2, 3, 4, 5, 8))
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return min(max(number, low), high)


_INTEGERS = {1: "int32", 2: "int64", 3: "uint32", 4: "uint64"}
"""What descriptors call CPPTYPE_INT32 and so on."""
