"""What is read from a kernel's machine code: what it takes of a GPU."""

from __future__ import annotations

import struct
from collections.abc import Iterator

RESERVED = 1024
"""Bytes of shared memory of each block that the system takes from Ampere on: they are counted in a
kernel's section, not among what it may have."""
REGISTER_COUNT = 0x2F
"""EIATTR_REGCOUNT, of .nv.info: a symbol's number and the registers of a thread."""


def usage(cubin: bytes, kernel: str) -> tuple[int, int]:
    """Registers of a thread, and bytes of shared memory of a block that the text declares."""
    sections = dict(_sections(cubin))
    info, symbols, names = (_bytes(cubin, sections[n]) for n in (".nv.info", ".symtab", ".strtab"))
    found = {}
    at = 0
    while at < len(info):
        kind, attribute, size = struct.unpack_from("<BBH", info, at)
        if kind == 4 and attribute == REGISTER_COUNT:
            symbol, registers = struct.unpack_from("<II", info, at + 4)
            (name,) = struct.unpack_from("<I", symbols, symbol * 24)
            found[_text(names, name)] = registers
        at += 4 + (size if kind == 4 else 0)
    shared = sections.get(f".nv.shared.{kernel}")
    reserved = RESERVED if ".nv.shared.reserved.0" in sections else 0
    return found[kernel], max(0, shared[5] - reserved) if shared else 0


def _sections(elf: bytes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and the header of each section of an ELF file of 64 bits."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    entry, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, start + i * entry) for i in range(count)]
    texts = _bytes(elf, headers[names])
    for header in headers:
        yield _text(texts, header[0]), header


def _bytes(elf: bytes, header: tuple[int, ...]) -> bytes:
    return elf[header[4] : header[4] + header[5]]


def _text(texts: bytes, begin: int) -> str:
    return texts[begin : texts.index(0, begin)].decode()
