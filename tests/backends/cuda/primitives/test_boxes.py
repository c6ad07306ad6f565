"""The kernels of boxes, run on the CPU in lockstep: their threads meet as they would on a GPU."""

from __future__ import annotations

import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.primitives import detection, multibox

from ... import test_primitives  # noqa: F401 (fills CASES)
from ...cases import CASES, Case
from ...running import run_call
from ...test_primitives import assert_close
from ..executed import execute
from ..simulated import simulate

LABELS = {
    "match_boxes": ("by prediction", "inside", "decoded, a box a class", "no truth"),
    "multibox_losses": ("SSD's", "a match a class"),
    "multibox_losses_backward": ("SSD's, some", "a match a class, all"),
    "mine_boxes": None,
    "detect_boxes": None,
    "evaluate_boxes": None,
}
"""What runs of each primitive (None: all cases): to build a kernel for others takes a second."""


def _runs(case: Case) -> bool:
    labels = LABELS.get(case.name, ())
    return labels is None or case.label in labels


@pytest.mark.parametrize(
    "each",
    list(filter(_runs, CASES)),
    ids=lambda case: f"{case.name}: {case.label}",
)
def test_kernels_in_lockstep(each: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    execute(monkeypatch)
    for module in detection, multibox:
        monkeypatch.setattr(module, "WIDE_BLOCK", 64)
    monkeypatch.setattr(detection, "LIST_BLOCK", 32)
    monkeypatch.setattr(detection, "blocks_for", lambda count: 1)
    monkeypatch.setattr(multibox, "blocks_for", lambda count: 1)
    found = run_call(Cuda(precision="fp32"), each.name, each.tensors, each.settings, flexible=False)
    for argument, wanted in each.expected.items():
        assert_close(found[argument], wanted, 1e-5, argument)
