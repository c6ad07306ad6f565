"""Kernels of plain loops, run on the CPU: what primitives are to compute, from the code for GPUs.

Threads of a block meet as they would on a GPU (see lockstep.h).
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.passes import convert
from osucaffe.backends.cuda.primitives import movement, pooling
from osucaffe.forks.rcnn import cuda as regions
from osucaffe.forks.ssd import cuda as detection
from tests.backends import test_primitives  # noqa: F401 (fills CASES)
from tests.backends.cases import CASES, Case
from tests.backends.running import Output, Runner, Spec, run_call
from tests.backends.test_primitives import assert_close

from ..executed import execute
from ..simulated import simulate

LABELS = {
    "batch_norm_pooling": ("padded, rounded up, ReLU", "8 channels, whole"),
    "batch_norm_pooling_backward": (
        "padded, rounded up, ReLU",
        "8 channels, whole",
        "8 channels, scale, constant",
    ),
    "cached_batch": None,
    "cached_rows": None,
    "concat": None,
    "detect_boxes": None,
    "evaluate_boxes": None,
    "gather_backward": ("rows", "more than a block"),
    "match_boxes": ("by prediction", "bipartite", "without difficult", "inside", "no truth"),
    "mine_boxes": None,
    "multibox_losses": ("SSD's", "a match a class"),
    "multibox_losses_backward": ("SSD's, all", "bounded decoded, some", "a match a class, all"),
    "next_row": None,
    "softmax_loss": None,
    "split": None,
    "softmax_loss_backward": ("2-d, ignore 1, VALID, weighted", "3-d, ignore 0, BATCH_SIZE"),
}
"""What runs of each primitive (None: all cases): to build a kernel takes a second. And of all that
look at regions, cases that have a label."""
MOVED = ("cached_batch", "cached_rows", "concat", "next_row", "split")
"""Primitives that only move numbers, and scale them once."""


def _runs(case: Case) -> bool:
    if case.name.startswith("roi_") or case.name == "ohem_select":
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
        several = isinstance(each.tensors[argument], list)
        got = found[argument]
        pairs = zip(got, expected, strict=True) if several else [(got, expected)]
        for part, wanted in pairs:
            if wanted is not None:
                assert_close(part, wanted, 1e-6 if each.name in MOVED else 1e-5, argument)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
@pytest.mark.parametrize("most", [2, 16])
@pytest.mark.parametrize("flexible", [False, True])
def test_parts_are_copied_together_and_masked(
    flexible: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row-major or with the channels last, in one launch or in several."""
    simulate(monkeypatch)
    execute(monkeypatch)
    monkeypatch.setattr(movement, "MAX_PARTS", most)
    monkeypatch.setattr(convert, "blocks_for", lambda count: 1)
    draw = np.random.default_rng(1)
    x, *masks = (
        np.float32(draw.normal(size=(2, channels, 3, 2))) for channels in (40, 8, 4, 12, 16)
    )
    masks[1] = None
    ys: list[Spec] = [Output((2, channels, 3, 2)) for channels in (8, 4, 12, 16)]
    found = run_call(
        Cuda(precision="fp32"), "split", {"x": x, "ys": ys}, {"axis": 1},
        flexible=flexible, relu_output=masks,
    )["ys"]  # fmt: skip
    for got, part, mask in zip(found, np.split(x, [8, 12, 24], axis=1), masks, strict=True):
        np.testing.assert_array_equal(got, part if mask is None else np.where(mask > 0, part, 0))


ON_GPU = [
    pytest.param(True, True, marks=pytest.mark.gpu),
    pytest.param(False, True, marks=pytest.mark.gpu),
]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
@pytest.mark.parametrize(
    ("given", "window"),
    [
        ((), (3, 1, 1)),
        (("addend",), (3, 1, 1)),
        (("addend", "relu_output"), (3, 1, 1)),
        (("addend", "relu_output"), (3, 2, 0)),
        (("addend", "relu_output"), (3, 2, 1)),
        (("addend",), (2, 2, 0)),
        ((), (5, 3, 2)),
        (("relu_output",), (7, 1, 3)),
    ],
)
@pytest.mark.parametrize(("images", "on_gpu"), [(True, False), *ON_GPU])
@pytest.mark.parametrize("kind", ["max", "average"])
def test_gradients_of_pooling_add_and_mask(
    kind: str,
    images: bool,
    on_gpu: bool,
    given: tuple[str, ...],
    window: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the kernel for images with the channels last, and by that for all windows.

    window: kernel, stride, pad."""
    if not on_gpu:
        simulate(monkeypatch)
        execute(monkeypatch)
        monkeypatch.setattr(pooling, "blocks_for", lambda count: 1)
    draw = np.random.default_rng(2)
    kernel, stride, pad = window
    x, addend, mask = (np.float32(draw.normal(size=(2, 4, 6, 7))) for _ in range(3))
    # Caffe rounds up.
    down, across = (-(-(extent + 2 * pad - kernel) // stride) + 1 for extent in (6, 7))
    dy = np.float32(draw.normal(size=(2, 4, down, across)))
    settings = {"kernel": [kernel] * 2, "stride": [stride] * 2, "pad": [pad] * 2}
    results, outputs = [], []
    for backend in Cpu(onednn=False), Cuda(precision="fp32"):
        runner = Runner(backend, flexible=images and backend.name == "cuda")
        tensors: dict[str, Spec] = {"dy": dy, "dx": (dx := Output(x.shape))}
        if kind == "max":
            index = Output(dy.shape, "int32")
            y = Output(dy.shape)
            runner.record("max_pooling", {"x": x, "y": y, "index": index}, settings)
            runner.tensor(index).flexible = True
            tensors["index"] = index
        runner.record(f"{kind}_pooling_backward", tensors, settings)
        if backend.name == "cuda":
            more = {"addend": addend, "relu_output": mask}
            for name in given:
                setattr(runner.calls[-1], name, runner.tensor(more[name]))
        runner.prepare()()
        results.append(runner.read(dx))
        outputs += [runner.read(y)] if kind == "max" else []
    assert all(np.array_equal(each, outputs[0]) for each in outputs)
    plain, found = results
    expected = plain + addend if "addend" in given else plain
    expected = np.where(mask > 0, expected, 0) if "relu_output" in given else expected
    assert_close(found, expected, 1e-6, kind)
