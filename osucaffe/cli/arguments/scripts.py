"""Owns the options of the commands that run programs written for Caffe."""

from __future__ import annotations

from .options import Options


def run(add: Options) -> None:
    """Run a Python script written for Caffe: `import caffe` finds osucaffe.

      osucaffe run tools/demo.py --cpu       as python tools/demo.py --cpu does
      osucaffe run -m package.module 3       as python -m package.module 3 does

    Everything after the script or the module is its own. OSUCAFFE_CPU_FALLBACK=1 lets
    caffe.set_mode_gpu() use the CPU where no GPU can be used. Its own errors end the script with
    their traceback, and what osucaffe refuses with one line; OSUCAFFE_DEBUG=1 shows all frames."""
    what = add.one_of(required=True)
    what("script", "the script", "SCRIPT", nargs="?")
    what("-m", "run a module as a script", "MODULE", dest="module")
