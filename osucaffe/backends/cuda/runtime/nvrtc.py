"""One compilation by NVRTC, as a program of its own: NVRTC does most of its work under a lock,
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


def kind_for(options: Sequence[str]) -> str:
    """What a device runs is a CUBIN; what its driver is to compile further is PTX."""
    return "CUBIN" if any("=sm_" in option for option in options) else "PTX"


def compiled(
    library: ctypes.CDLL, text: bytes, options: Sequence[str], kind: str
) -> tuple[bytes | None, bytes]:
    """The "PTX" or "CUBIN" of a text (None where it does not compile), and the log."""
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), text, b"kernel.cu", 0, None, None)
    flags = (ctypes.c_char_p * len(options))(*map(str.encode, options))

    def get(kind: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
        made = ctypes.create_string_buffer(size.value)
        getattr(library, f"nvrtcGet{kind}")(program, made)
        return made.raw if kind == "CUBIN" else made.value

    failed = library.nvrtcCompileProgram(program, len(options), flags)
    made = None if failed else get(kind)
    log = get("ProgramLog")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return made, log


def main(path: str, *options: str) -> int:
    made, log = compiled(load(path), sys.stdin.buffer.read(), options, kind_for(options))
    (sys.stderr if made is None else sys.stdout).buffer.write(log if made is None else made)
    return FAILED if made is None else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
