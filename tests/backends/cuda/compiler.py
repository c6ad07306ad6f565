"""The compilation of kernels by NVRTC in this process, which spares the start of another; and
that any text is compiled once, also where several workers run the tests, and in later runs
(conftest.py makes the folder)."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from osucaffe.backends.cuda.runtime import compile as compiling
from osucaffe.backends.cuda.runtime.cache import keep
from osucaffe.backends.cuda.runtime.nvrtc import compiled, kind_for, load


@functools.cache
def nvrtc() -> Any:
    """The library, or None where it is not installed."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    found = [path for folder in folders for path in folder.glob("*/lib/libnvrtc.so.1?")]
    return load(str(found[0])) if found else None


@functools.cache
def compile_kernel(kind: str, text: str, options: tuple[str, ...]) -> bytes:
    """What NVRTC makes of a CUDA source. kind: "PTX" or "CUBIN". AssertionError with its log where
    the source does not compile, or instructions of Hopper GPUs wait for one another."""
    return once(nvrtc()._name, (kind, text, *options), lambda: _compile(kind, text, options))


def once(compiler: str, source: Sequence[str], make: Callable[[], bytes]) -> bytes:
    """What a compiler, which lies there, makes of a source and what else it depends on: from the
    folder of what is compiled already, or made now."""
    found = Path(compiler).stat()
    key = "\n".join([compiler, f"{found.st_size} {found.st_mtime_ns}", *source])
    file = Path(os.environ["OSUCAFFE_TEST_KERNELS"], hashlib.sha256(key.encode()).hexdigest())
    if not file.exists():
        keep(file, make())
    return file.read_bytes()


def _compile(kind: str, text: str, options: tuple[str, ...]) -> bytes:
    made, log = compiled(nvrtc(), text.encode(), options, kind)
    assert made is not None, f"{options}: {log.decode()}"
    assert b"serialized" not in log, log.decode()
    return made


def compile_here() -> None:
    """Let backends compile in this process from now on, where others use the other cores."""
    load_once = functools.cache(load)

    @functools.wraps(compiling.in_child)
    def here(library: str, text: str, options: tuple[str, ...]) -> bytes:
        made, log = compiled(load_once(library), text.encode(), options, kind_for(options))
        if made is None:
            raise RuntimeError(log.decode())
        return made

    compiling.in_child = here
