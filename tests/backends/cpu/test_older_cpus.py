"""On CPUs that have AVX2 alone, no inner product takes oneDNN's reference code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from osucaffe.backends.cpu import Cpu

SCRIPT = """
from osucaffe.backends.cpu import Cpu
from osucaffe.backends.primitives import Program
from osucaffe.backends.tensor import Tensor

def tensor(*shape, like=None):
    made = Tensor(shape, flexible=True)
    made.like = like
    return made

x, w, y = tensor(32, 2352), tensor(1000, 2352), tensor(32, 1000)
dx, dw, dy = tensor(32, 2352, like=x), tensor(1000, 2352, like=w), tensor(32, 1000, like=y)
program = Program()
program.inner_product(x, w, None, y, axis=1, transpose=False, relu=None)
program.inner_product_backward_data(dy, w, dx, axis=1, transpose=False)
program.inner_product_backward_filter(x, dy, dw, None, axis=1, transpose=False)
for step in Cpu().prepare(program.calls):
    print(step.implementation)
"""


def test_no_inner_product_takes_reference_code() -> None:
    if Cpu().onednn is None:
        pytest.skip("no oneDNN library here")
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    names = done.stdout.splitlines()
    assert len(names) == 3
    assert not [name for name in names if "ref" in name]
