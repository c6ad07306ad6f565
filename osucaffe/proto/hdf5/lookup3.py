"""Owns the checksum of HDF5's newer parts: Jenkins's lookup3, "hashlittle" beginning with 0
(http://burtleburtle.net/bob/c/lookup3.c)."""

from __future__ import annotations

_MOST = 0xFFFFFFFF


def check_sum(content: bytes) -> None:
    """ValueError unless the last four bytes are the checksum of those before them."""
    if lookup3(content[:-4]) != int.from_bytes(content[-4:], "little"):
        raise ValueError("a part of it is not what its checksum says")


def lookup3(content: bytes) -> int:
    """The checksum of at least one byte."""
    a = b = c = 0xDEADBEEF + len(content) & _MOST
    for at in range(0, len(content), 12):
        part = content[at : at + 12].ljust(12, b"\0")
        a = a + int.from_bytes(part[:4], "little") & _MOST
        b = b + int.from_bytes(part[4:8], "little") & _MOST
        c = c + int.from_bytes(part[8:], "little") & _MOST
        if at + 12 < len(content):
            for by in 4, 6, 8, 16, 19, 4:
                a, b, c = b, c + b & _MOST, (a - c & _MOST) ^ _turned(c, by)
        else:
            for by in 14, 11, 25, 16, 4, 14, 24:
                a, b, c = b, (c ^ b) - _turned(b, by) & _MOST, a
    return b


def _turned(x: int, by: int) -> int:
    return (x << by | x >> 32 - by) & _MOST
