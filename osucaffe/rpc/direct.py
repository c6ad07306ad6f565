"""Writing into the memory of another process of this host: one copy,
from an array to an array.

By Linux's cross-memory attach, which is allowed among processes of one user, unless the system's
settings (Yama's ptrace_scope, a container's seccomp) forbid it: `find_direct` tries. Or, into
registered memory, which the others map: a plain copy then runs at the speed of memory, while the
system call must look up each page first.
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

from ..comm.job.handshake import Gather

_SYSTEM = ctypes.CDLL(None, use_errno=True)
_IOV_MAX = 512  # most pieces in one system call


class _Piece(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def find_direct(rank: int, gather: Gather) -> dict[int, int]:
    """The process id of each other rank, where both can write to each other's memory. All ranks
    call it together."""
    probe = np.frombuffer(bytearray(secrets.token_bytes(16)), np.uint8)
    probes = gather((_host(), os.getpid(), probe.ctypes.data, probe.tobytes()))
    allowed = set()
    for other, (host, process, address, expected) in enumerate(probes):
        if other != rank and host == _host() and sys.platform == "linux":
            read = np.zeros(16, np.uint8)
            done = _call("process_vm_readv", process, [read.data], [(address, 16)])
            if done == 16 and read.tobytes() == expected:
                allowed.add(other)
    mutual = gather(allowed)
    return {other: probes[other][1] for other in allowed if rank in mutual[other]}


def write(process: int, sources: Sequence[memoryview], targets: Sequence[tuple[int, int]]) -> None:
    """Copy these bytes to these (address, size) ranges of another process. OSError."""
    sources, targets = list(sources), list(targets)
    while sources:
        written = _call("process_vm_writev", process, sources[:_IOV_MAX], targets[:_IOV_MAX])
        if written <= 0:
            raise OSError(ctypes.get_errno(), "another process's memory cannot be written")
        left = written
        while left and left >= len(sources[0]):
            left -= len(sources.pop(0))
        if left:
            sources[0] = sources[0][left:]
        while written and written >= targets[0][1]:
            written -= targets.pop(0)[1]
        if written:
            targets[0] = targets[0][0] + written, targets[0][1] - written


def _call(
    name: str, process: int, views: Sequence[memoryview], remote: Sequence[tuple[int, int]]
) -> int:
    """The number of bytes copied by the system call; -1 if it failed."""
    function = getattr(_SYSTEM, name)
    function.restype = ctypes.c_ssize_t
    pieces = [(np.frombuffer(view, np.uint8).ctypes.data, len(view)) for view in views]
    local_array, remote_array = (
        (_Piece * len(group))(*(_Piece(start, nbytes) for start, nbytes in group))
        for group in (pieces, remote)
    )
    sizes = [ctypes.c_ulong(len(group)) for group in (views, remote)]
    flags = ctypes.c_ulong(0)
    return int(function(process, local_array, sizes[0], remote_array, sizes[1], flags))


def _host() -> str:
    """Identifies this host, its boot, and its PID and network namespaces."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    spaces = [Path("/proc/self/ns") / name for name in ("pid", "net")]
    where = "".join(os.readlink(space) for space in spaces if space.exists())
    return os.uname().nodename + (boot.read_text().strip() if boot.exists() else "") + where


class Region(NamedTuple):
    """A receive buffer: its address in the receiving process; and if it is registered, the file
    that backs it there, and the offset in that file (else file is -1)."""

    address: int
    nbytes: int
    file: int
    offset: int


class Registered:
    """The registered buffers of this process."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, int, int]] = []  # start, stop, file

    def allocate(self, nbytes: int) -> np.ndarray:
        """This many zero bytes."""
        file = os.memfd_create("osucaffe")
        os.ftruncate(file, max(nbytes, 1))
        memory = np.frombuffer(mmap.mmap(file, max(nbytes, 1)), np.uint8)
        start = memory.ctypes.data
        self._blocks.append((start, start + len(memory), file))
        return memory[:nbytes]

    def regions(self, views: Sequence[memoryview]) -> list[Region]:
        """Their addresses, and the file and offset where they are registered."""
        result = []
        for view in views:
            at = np.frombuffer(view, np.uint8).ctypes.data
            for start, stop, file in self._blocks:
                if start <= at < stop:
                    result.append(Region(at, len(view), file, at - start))
                    break
            else:
                result.append(Region(at, len(view), -1, 0))
        return result

    def close(self) -> None:
        """From now on peers can map none of them; the arrays stay valid."""
        for _, _, file in self._blocks:
            os.close(file)
        self._blocks = []


class Mapped:
    """The registered buffers of another process on this host, mapped on first use."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._files: dict[int, np.ndarray] = {}

    def write(self, sources: Sequence[memoryview], targets: Sequence[Region]) -> None:
        """Copy these bytes to these regions, all registered. OSError."""
        source, left = np.empty(0, np.uint8), iter(sources)
        for target in targets:
            done = 0
            while done < target.nbytes:
                if not len(source):
                    source = np.frombuffer(next(left), np.uint8)
                count = min(len(source), target.nbytes - done)
                start = target.offset + done
                # NumPy lets other threads run meanwhile.
                np.copyto(self._file(target.file)[start : start + count], source[:count])
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
