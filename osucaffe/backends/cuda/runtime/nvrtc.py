"""Owns one compilation by NVRTC, as a program of its own: NVRTC does most of its work under a lock,
so that threads of one process wait for each other, and processes do not.

Run as `python nvrtc.py LIBRARY OPTION…`, without any package: the text comes on standard input,
what it is compiled to goes to standard output, and what is wrong with it to standard error.
"""

import ctypes
import os
import sys
from collections.abc import Sequence

FAILED = 3
"""The exit code where the text does not compile."""


def load(path: str) -> ctypes.CDLL:
    """The library. Some versions of it do not find libnvrtc-builtins in their own folder."""
    folder = os.path.dirname(path)
    for name in os.listdir(folder):
        if name.startswith("libnvrtc-builtins.so."):
            ctypes.CDLL(os.path.join(folder, name))
    return ctypes.CDLL(path)


def compiled(library: ctypes.CDLL, text: bytes, options: Sequence[str]) -> tuple[bytes, bool]:
    """What a text is compiled to; or the log, and True, where it does not compile."""
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), text, b"kernel.cu", 0, None, None)
    flags = (ctypes.c_char_p * len(options))(*map(str.encode, options))
    failed = bool(library.nvrtcCompileProgram(program, len(options), flags))
    is_final = any("=sm_" in option for option in options)
    kind = "ProgramLog" if failed else "CUBIN" if is_final else "PTX"
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    made = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{kind}")(program, made)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return made.raw if kind == "CUBIN" else made.value, failed


def main(path: str, *options: str) -> int:
    made, failed = compiled(load(path), sys.stdin.buffer.read(), options)
    (sys.stderr if failed else sys.stdout).buffer.write(made)
    return FAILED if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
