"""Maximum pooling normalizes what it reads: what batch normalization would make is not made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.net import Net
from tests.layers.nets import build

from ...backends.cuda.simulated import simulate, with_libraries
from .test_batch_norm import NOISE, SHAPES, branch, layer
from .test_pixels import run as run_on


class Joining(Cpu):
    """Gains where maximum pooling normalizes."""

    enabled_passes = frozenset(("normalize in pooling",))


POOL = "pooling_param { kernel_size: 3 stride: 2 }"
CONVOLUTION = f"convolution_param {{ num_output: 8 kernel_size: 1 weight_filler {NOISE} }}"
END = "reduction_param { operation: SUMSQ } loss_weight: 1"


def net_of(
    stem: str, last: str = "stem", pool: str = POOL, more: str = "", top: str = "pool"
) -> str:
    return (
        f'layer {{ name: "x" type: "Input" top: "x" input_param {{ {SHAPES} }} }}\n'
        + stem + layer("pool", "Pooling", last, top, pool)
        + layer("y", "Convolution", "pool", "y", CONVOLUTION)
        + layer("loss", "Reduction", "y", "loss", END) + more
    )  # fmt: skip


def run(text: str, backend: Any = None, **options: bool) -> tuple[Net, list[np.ndarray]]:
    return run_on(text, backend or Joining(onednn=False), **options)


def joined(net: Net) -> list[int]:
    """How many poolings normalize, in each program."""
    return [sum("batch_norm_pooling" in call.name for call in calls) for calls in net.programs]


CONSTANT = "batch_norm_param { use_global_stats: true eps: 2 }"
STEMS = {
    "in place": (branch("stem", "x", relu=True), "stem"),
    "apart": (branch("stem", "x", relu=True, place="_"), "stem__"),
    "no ReLU": (branch("stem", "x", relu=False), "stem"),
    "constant": (branch("stem", "x", relu=True, settings=CONSTANT), "stem"),
}


@pytest.mark.parametrize("gpu", [False, pytest.param(True, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("stem", STEMS)
def test_a_net_learns_the_same(stem: str, gpu: bool) -> None:
    text = net_of(*STEMS[stem])
    _, expected = run(text, inspectable=True)
    net, found = run(text, Cuda() if gpu else None)
    for wanted, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max() + 1e-9)
    assert joined(net) == [1, 1]


LOOK = layer("look", "Power", "stem", "look")


@pytest.mark.parametrize(
    "options",
    [
        {"more": LOOK},
        {"top": "pool mask"},
        {"pool": "pooling_param { kernel_size: 3 stride: 2 pool: AVE }"},
        {"pool": "pooling_param { kernel_size: 16 pad: 6 }"},
        {
            "stem": branch("a", "x", relu=False)
            + branch("b", "x", relu=False)
            + layer("sum", "Eltwise", "a b", "stem")
        },
    ],
    ids=["another reads", "a mask", "mean", "a large window", "a sum between"],
)
def test_what_others_want_is_made(options: dict[str, str]) -> None:
    net, _ = run(net_of(**{"stem": branch("stem", "x", relu=True)} | options))
    assert joined(net) == [0, 0]


def test_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """And pooling that stops gradients for a ReLU behind it stays as it is."""
    simulate(monkeypatch)
    backend = with_libraries(Cuda(graphs=False))
    text = net_of(*STEMS["in place"])
    net, _ = run(text, backend)
    assert joined(net) == [1, 1]
    relu = layer("relu", "ReLU", "pool", "pool")
    behind = (
        text[: text.index('layer { name: "y"')] + relu + layer("l", "Reduction", "pool", "l", END)
    )
    net = build(behind, backend, phase="TRAIN")
    assert joined(net) == [0, 0]
    assert [c for c in net.programs[0] if getattr(c, "after_relu", False)]
