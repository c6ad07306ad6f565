"""Kernels of plain loops, run on the CPU: what primitives are to compute, from the code for GPUs.

Threads of a block meet as they would on a GPU (see lockstep.h).
"""

from __future__ import annotations

import shutil

import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.primitives import detection, regions

from ... import test_primitives  # noqa: F401 (fills CASES)
from ...cases import CASES, Case
from ...running import run_call
from ...test_primitives import assert_close
from ..executed import execute
from ..simulated import simulate

LABELS = {
    "cached_batch": None,
    "cached_rows": None,
    "detect_boxes": None,
    "evaluate_boxes": None,
    "match_boxes": ("by prediction", "bipartite", "without difficult", "inside", "no truth"),
    "mine_boxes": None,
    "multibox_losses": ("SSD's", "a match a class"),
    "multibox_losses_backward": ("SSD's, all", "bounded decoded, some", "a match a class, all"),
    "next_row": None,
    "softmax_loss": None,
    "softmax_loss_backward": ("2-d, ignore 1, VALID, weighted", "3-d, ignore 0, BATCH_SIZE"),
}
"""What runs of each primitive (None: all cases): to build a kernel takes a second. And of all that
look at regions, cases that have a label."""
MOVED = ("cached_batch", "cached_rows", "next_row")
"""Primitives that only move numbers, and scale them once."""


def _runs(case: Case) -> bool:
    if case.name.startswith("roi_") or case.name == "hardest":
        return bool(case.label)
    labels = LABELS.get(case.name, ())
    return labels is None or case.label in labels


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
@pytest.mark.parametrize(
    "each", list(filter(_runs, CASES)), ids=lambda case: f"{case.name}: {case.label}"
)
def test_kernels_in_lockstep(each: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    execute(monkeypatch)
    monkeypatch.setattr(detection, "WIDE_BLOCK", 64)
    monkeypatch.setattr(detection, "LIST_BLOCK", 32)
    for module in detection, regions:
        monkeypatch.setattr(module, "blocks_for", lambda count: 1)
    backend, call = Cuda(precision="fp32"), (each.name, each.tensors, each.settings)
    found = run_call(backend, *call, flexible=False, first=each.first)
    for argument, expected in each.expected.items():
        assert_close(found[argument], expected, 1e-6 if each.name in MOVED else 1e-5, argument)
