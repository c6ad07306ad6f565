"""One start of `osucaffe train`, with a clock at its parts: what bench_setup runs.

Its arguments are those of the command. It prints one JSON line when the first iteration has ended:
seconds since the command began (in $OSUCAFFE_BEGUN), and where they went. It needs nothing of this
package, so that an older version can be measured in the same way ($PYTHONPATH).
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

BEGUN = float(os.environ["OSUCAFFE_BEGUN"])
STARTED = time.time()

CUDA = "osucaffe.backends.cuda"
PARTS = {
    "CuPy and the device": (f"{CUDA}.backend", "Cuda.__init__"),
    "nets, in all": ("osucaffe.net", "Net.__init__"),
    "preparing, in all": (f"{CUDA}.backend", "Cuda.prepare"),
    "timing": (f"{CUDA}.autotune.tuner", "Tuner._time"),
    "of which waiting for builds": (f"{CUDA}.autotune.tuner", "Tuner._candidates"),
    "plans of cuDNN, all threads": (f"{CUDA}.convolution.cudnn", "CudnnPlans._on_a_thread"),
    "cuBLASLt, all threads": (f"{CUDA}.convolution.gemm", "Products._on_a_thread"),
    "NVRTC, all threads": (f"{CUDA}.runtime.compile", "_compiled_file"),
    "the first iteration": ("osucaffe.solvers.solver", "Solver.step"),
}
"""What is on the clock: functions, which may be parts of one another."""

seconds: dict[str, float] = defaultdict(float)
_inside = threading.local()


def main() -> None:
    """Run the command."""
    from osucaffe.cli import main as command

    seconds["Python and the command line"] = time.time() - BEGUN
    for part, (module, name) in PARTS.items():
        try:
            _wrap(part, importlib.import_module(module), name)
        except (ImportError, AttributeError):  # an older version has it elsewhere
            continue
    seconds["modules"] = time.time() - BEGUN - seconds["Python and the command line"]
    sys.exit(command(["train", *sys.argv[1:]]))


def _wrap(part: str, module: Any, name: str) -> None:
    owner, _, attribute = f"{module.__name__}.{name}".rpartition(".")
    holder = getattr(module, owner.rpartition(".")[2]) if "." in name else module
    plain = getattr(holder, attribute)
    setattr(holder, attribute, _clocked(part, plain))


def _clocked(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, part, False):  # a part of itself
            return function(*args, **kwargs)
        setattr(_inside, part, True)
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            setattr(_inside, part, False)
            seconds[part] += time.perf_counter() - start
            if part == "the first iteration":
                args[0].backend.synchronize()
                total = time.time() - BEGUN
                print(json.dumps({"total": total, "parts": seconds}), flush=True)

    return run


if __name__ == "__main__":
    main()
