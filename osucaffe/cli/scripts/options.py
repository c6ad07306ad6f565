"""The options of the command that runs programs written for Caffe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...options.flags import OneOf, argument, flag

_WHAT = OneOf("what", required=True)


@dataclass(frozen=True, kw_only=True)
class Run:
    """
      osucaffe run tools/demo.py --cpu       as python tools/demo.py --cpu does
      osucaffe run -m package.module 3       as python -m package.module 3 does

    Everything after the script or the module is its own. OSUCAFFE_CPU_FALLBACK=1 lets
    caffe.set_mode_gpu() use the CPU where no GPU can be used. Its own errors end the script with
    their traceback, and what osucaffe refuses with one line; OSUCAFFE_DEBUG=1 shows all frames."""

    script: str | None = argument("the script", "SCRIPT", nargs="?", one_of=_WHAT)
    module: str | None = flag("run a module as a script", "MODULE", name="-m", one_of=_WHAT)
    arguments: Sequence[str] = ()
