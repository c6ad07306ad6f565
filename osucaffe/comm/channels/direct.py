"""Owns writing into the memory of another process of this host: one copy,
from an array to an array.

By Linux's cross-memory attach, which is allowed among processes of one user, unless the system's
settings (Yama's ptrace_scope, a container's seccomp) forbid it: `find_direct` tries. Or, into
registered memory, which the others map, by a copy of their own, at the speed of memory, where the
system's own copy must find each page first.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..job.links import Gather

_SYSTEM = ctypes.CDLL(None, use_errno=True)
_PLACES = 512  # pieces that one call of the system takes at most


class _Piece(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def find_direct(rank: int, gather: Gather) -> dict[int, int]:
    """The process of each other rank that can be written to from here, and from which here. All
    ranks call it together."""
    probe = np.frombuffer(bytearray(secrets.token_bytes(16)), np.uint8)
    told = gather((_host(), os.getpid(), probe.ctypes.data, probe.tobytes()))
    allowed = set()
    for other, (host, process, address, expected) in enumerate(told):
        if other != rank and host == _host() and sys.platform == "linux":
            found = np.zeros(16, np.uint8)
            done = _call("process_vm_readv", process, [found.data], [(address, 16)])
            if done == 16 and found.tobytes() == expected:
                allowed.add(other)
    mutual = gather(allowed)
    return {other: told[other][1] for other in allowed if rank in mutual[other]}


def write(process: int, sources: Sequence[memoryview], places: Sequence[tuple[int, int]]) -> None:
    """Copy these bytes to those places (address, bytes) of a process. OSError."""
    sources, places = list(sources), list(places)
    while sources:
        taken = _call("process_vm_writev", process, sources[:_PLACES], places[:_PLACES])
        if taken <= 0:
            raise OSError(ctypes.get_errno(), "another process's memory cannot be written")
        left = taken
        while left and left >= len(sources[0]):
            left -= len(sources.pop(0))
        if left:
            sources[0] = sources[0][left:]
        while taken and taken >= places[0][1]:
            taken -= places.pop(0)[1]
        if taken:
            places[0] = places[0][0] + taken, places[0][1] - taken


def _call(
    name: str, process: int, own: Sequence[memoryview], others: Sequence[tuple[int, int]]
) -> int:
    """The bytes that the system has copied; -1 where it did not."""
    function = getattr(_SYSTEM, name)
    function.restype = ctypes.c_ssize_t
    places = [(np.frombuffer(each, np.uint8).ctypes.data, len(each)) for each in own]
    local, remote = (
        (_Piece * len(each))(*(_Piece(start, nbytes) for start, nbytes in each))
        for each in (places, others)
    )
    sizes = [ctypes.c_ulong(len(each)) for each in (own, others)]
    flags = ctypes.c_ulong(0)
    return int(function(process, local, sizes[0], remote, sizes[1], flags))


def _host() -> str:
    """What tells this host, its running system, and its processes' numbers, from others."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    spaces = [Path("/proc/self/ns") / each for each in ("pid", "net")]
    where = "".join(os.readlink(each) for each in spaces if each.exists())
    return os.uname().nodename + (boot.read_text().strip() if boot.exists() else "") + where


class Region(NamedTuple):
    """Where so many bytes are wanted: their address in the process that wants them; and if they are
    registered, the file that holds them there, and where in it (else file is -1)."""

    address: int
    nbytes: int
    file: int
    offset: int


class Registered:
    """The buffers of this process."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, int, int]] = []  # first address, behind the last, file

    def allocate(self, nbytes: int) -> np.ndarray:
        """So many bytes, all zero."""
        file = os.memfd_create("osucaffe")
        os.ftruncate(file, max(nbytes, 1))
        memory = np.frombuffer(mmap.mmap(file, max(nbytes, 1)), np.uint8)
        start = memory.ctypes.data
        self._blocks.append((start, start + len(memory), file))
        return memory[:nbytes]

    def places(self, views: Sequence[memoryview]) -> list[Region]:
        """Where they lie."""
        found = []
        for view in views:
            at = np.frombuffer(view, np.uint8).ctypes.data
            for start, stop, file in self._blocks:
                if start <= at < stop:
                    found.append(Region(at, len(view), file, at - start))
                    break
            else:
                found.append(Region(at, len(view), -1, 0))
        return found

    def close(self) -> None:
        """None is mapped any more from now on; arrays stay."""
        for _, _, file in self._blocks:
            os.close(file)
        self._blocks = []


class Mapped:
    """The registered buffers of another process of this host, as far as they were needed."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._files: dict[int, np.ndarray] = {}

    def write(self, sources: Sequence[memoryview], places: Sequence[Region]) -> None:
        """Copy these bytes to those places, all registered. OSError."""
        source, left = np.empty(0, np.uint8), iter(sources)
        for place in places:
            done = 0
            while done < place.nbytes:
                if not len(source):
                    source = np.frombuffer(next(left), np.uint8)
                count = min(len(source), place.nbytes - done)
                start = place.offset + done
                # NumPy lets other threads run meanwhile.
                np.copyto(self._file(place.file)[start : start + count], source[:count])
                source, done = source[count:], done + count

    def _file(self, file: int) -> np.ndarray:
        if file not in self._files:
            opened = os.open(f"/proc/{self._process}/fd/{file}", os.O_RDWR)
            try:
                memory = mmap.mmap(opened, os.fstat(opened).st_size)
            finally:
                os.close(opened)
            self._files[file] = np.frombuffer(memory, np.uint8)
        return self._files[file]
