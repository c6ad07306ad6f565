"""Runs the kernels of `ipc` on the host: a thread of the system for each CUDA thread.

A C++ compiler takes the same source; only the two 16-byte accesses, which are PTX, are replaced.
So any number of ranks can be tried without a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.comm.gpu import ipc, kernels

COMPILER = shutil.which("c++") or shutil.which("g++")
SMALL = {"SLOT": 256, "BLOCKS": 2, "THREADS": 4, "TRIP": 20}
"""A small GPU, on which arrays of some hundred elements take all ways."""

_PRELUDE = r"""
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <pthread.h>
#include <thread>
#include <vector>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(most)
using std::max;
struct Place { int x; };
static thread_local Place blockIdx, threadIdx, blockDim, gridDim;
static thread_local pthread_barrier_t* meeting;
static thread_local time_t begun;
static void __syncthreads() { pthread_barrier_wait(meeting); }
"""

_PUT = """for (int i = 0; i < 3; ++i) to->word[i] = packet.word[i];
    __atomic_store_n(&to->word[3], packet.word[3], __ATOMIC_RELEASE);"""
_LOOK = """packet.word[3] = __atomic_load_n(&at->word[3], __ATOMIC_ACQUIRE);
    for (int i = 0; i < 3; ++i) packet.word[i] = at->word[i];
    std::this_thread::yield();
    if (time(nullptr) > begun + 20) fputs("a packet never came", stderr), abort();"""

_LAUNCHES = r"""
template <class... Given>
static void run(void (*kernel)(Given...), int blocks, int threads, Given... given) {
    std::vector<pthread_barrier_t> meetings(blocks);
    std::vector<std::thread> all;
    for (int b = 0; b < blocks; ++b) {
        pthread_barrier_init(&meetings[b], nullptr, threads);
        for (int t = 0; t < threads; ++t)
            all.emplace_back([=, &meetings] {
                blockIdx.x = b, threadIdx.x = t, blockDim.x = threads, gridDim.x = blocks;
                meeting = &meetings[b], begun = time(nullptr);
                kernel(given...);
            });
    }
    for (auto& each : all) each.join();
}
extern "C" void run_one_shot(int b, int t, T* x, int n, const uint64_t* s, uint32_t* c, int r) {
    run(one_shot, b, t, x, n, s, c, r);
}
extern "C" void run_two_shot(int b, int t, T* x, int n, const uint64_t* s, uint32_t* c, int r) {
    run(two_shot, b, t, x, n, s, c, r);
}
extern "C" void run_spread(int b, int t, T* x, int root, int64_t whole, int64_t offset, int n,
                           const uint64_t* s, uint32_t* c, int r) {
    run(spread, b, t, x, root, whole, offset, n, s, c, r);
}
"""


def source(dtype: str, macros: dict[str, int]) -> str:
    """What a C++ compiler takes."""
    text = kernels._text("ipc", dtype, tuple(macros.items()))
    text = re.sub(r"^typedef .*int(32|64)_t;$", "", text, flags=re.MULTILINE)
    accesses = iter((_PUT, _LOOK))
    text, count = re.subn(r"asm volatile\(.*?\);", lambda _: next(accesses), text, flags=re.DOTALL)
    assert count == 2
    return _PRELUDE + text + _LAUNCHES


def _pass(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    if isinstance(value, np.generic):
        return np.ctypeslib.as_ctypes_type(value.dtype)(int(value))
    return ctypes.c_void_p(value)


def compiler(folder: Path) -> Callable[..., Any]:
    """What stands for `kernels.kernel`: it returns functions that run here, to their end."""

    lock = threading.Lock()

    @functools.cache
    def library(dtype: str, macros: tuple[tuple[str, int], ...]) -> Any:
        name = "-".join([dtype, *(str(value) for _, value in macros)])
        path = folder / f"{name}.cpp"
        path.write_text(source(dtype, dict(macros)))
        command = [COMPILER, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-pthread", path]
        subprocess.run([*map(str, command), "-o", path.with_suffix(".so")], check=True)
        return ctypes.CDLL(str(path.with_suffix(".so")))

    def kernel(name: str, function: str, dtype: str, **macros: int) -> Any:
        with lock:
            run = getattr(library(dtype, tuple(macros.items())), f"run_{function}")

        def call(
            blocks: Sequence[int], threads: Sequence[int], arguments: Sequence[Any], stream: Any
        ) -> None:
            run(blocks[0], threads[0], *map(_pass, arguments))

        return call

    return kernel


def make_ranks(
    size: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Any, np.ndarray]]:
    """Communicators without GPUs, and their slots."""
    for name, value in SMALL.items():
        monkeypatch.setattr(ipc, name, value)
    monkeypatch.setattr(ipc, "kernel", compiler(folder))
    slots = [np.zeros((2 * ipc.SLOT, 4), np.uint32) for _ in range(size)]
    addresses = np.array([each.ctypes.data for each in slots], np.uint64)
    made = []
    for rank in range(size):
        comm: Any = object.__new__(ipc.Ipc)
        comm.rank, comm.size, comm._blocks = rank, size, ipc.BLOCKS
        comm._slots, comm._calls = addresses, np.zeros(ipc.BLOCKS, np.uint32)
        comm._launches = comm._prepare
        made.append((comm, slots[rank]))
    return made
