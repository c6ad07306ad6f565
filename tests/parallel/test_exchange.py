"""N ranks with batch B train as one with batch N·B, however gradients and weights travel: in
buckets, which cover the parameters that learn, once, and name the layer that completes them.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.comm.algorithms import Operation, part
from osucaffe.comm.communicator import Serial
from osucaffe.comm.gpu.copy_engine import CopyEngine
from osucaffe.comm.gpu.nccl import Nccl
from osucaffe.net import Net
from osucaffe.parallel.buckets import Bucket, align, find_buckets
from osucaffe.parallel.config import ParallelConfig, choose_propagation
from osucaffe.parallel.exchange import Collectives
from osucaffe.parallel.plan import UNDIVIDED, Note, sums_of
from osucaffe.proto import read_net
from osucaffe.study.sketch import Sketch
from tests.backends.cuda.emulated import emulate, needs_compilers
from tests.comm.ranks import all_say, needs_mpi
from tests.layers.nets import build as build_net


@needs_mpi
@pytest.mark.parametrize("ranks", [*(pytest.param(n, marks=pytest.mark.long) for n in (2, 3)), 4])
def test_equivalence(ranks: int, tmp_path: Path) -> None:
    all_say("cases alike", ranks, "tests.parallel.equivalence", str(tmp_path))


LAYER = """
layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}" {param}
  inner_product_param {{ num_output: 10 bias_term: false weight_filler {{ type: "xavier" }} }} }}
"""
DATA = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 10 } } }'


def build(*params: str) -> Net:
    text, bottom = DATA, "x"
    for number, param in enumerate(params):
        text += LAYER.format(name=f"ip{number}", bottom=bottom, param=param)
        bottom = f"ip{number}"
    text += f'layer {{ name: "l" type: "Reduction" bottom: "{bottom}" top: "l" loss_weight: 1 }}'
    return build_net(text, Cpu(threads=1, onednn=False), phase="TRAIN")


FROZEN, SHARED = "param { lr_mult: 0 }", 'param { name: "w" }'


@pytest.mark.parametrize(
    ("params", "nbytes", "frozen", "buckets"),
    [
        (["", "", ""], 0, False, [(0, 112, 3), (112, 224, 2), (224, 336, 1)]),
        (["", "", ""], 448, False, [(0, 112, 3), (112, 224, 2), (224, 336, 1)]),
        (["", "", ""], 449, False, [(0, 224, 2), (224, 336, 1)]),
        (["", "", ""], 10**9, False, [(0, 336, 1)]),
        # Frozen parameters are behind the others.
        (["", FROZEN, ""], 10**9, False, [(0, 224, 1)]),
        (["", FROZEN, ""], 10**9, True, [(0, 336, 1)]),
        (["", FROZEN, ""], 0, True, [(0, 112, 3), (112, 224, 1), (224, 336, 1)]),
        ([FROZEN, FROZEN], 0, False, []),
        # A shared parameter is complete with its lowest layer; what is behind it waits for it.
        ([SHARED, "", SHARED], 0, False, [(0, 112, 2), (112, 224, 1)]),
        (["", SHARED, SHARED, ""], 0, False, [(0, 112, 4), (112, 224, 2), (224, 336, 1)]),
    ],
)
def test_buckets(params: list[str], nbytes: int, frozen: bool, buckets: list[Any]) -> None:
    net = build(*params)
    assert find_buckets(net, nbytes, frozen=frozen) == buckets
    assert net.arena.learned == 112 * len({*filter(None, params)} - {FROZEN}) + 112 * params.count(
        ""
    )


def test_a_bucket_is_sent_before_backward_goes_on() -> None:
    net, sent = build("", "", ""), list[str]()
    comm: Any = Serial()
    comm.collective = lambda *_, stream: sent.append("bucket")
    optimizer: Any = SimpleNamespace(separable=False)
    exchange = Collectives(comm, net, optimizer, ParallelConfig(bucket=0), int)
    plan = exchange.plan.of_pass(accumulate=False, update=True)
    for layer in 3, 2, 1:
        plan.after[layer].append(Note(partial(sent.append, f"layer {layer}")))
    before, after = exchange.bind(plan.before), exchange.bind(plan.after)
    net.as_step(before=before, after=after, enqueues=False)()
    assert sent == ["bucket", "layer 3", "bucket", "layer 2", "bucket", "layer 1"]


def test_the_last_one_is_small() -> None:
    def sizes(layers: int, nbytes: int) -> list[int]:
        buckets = find_buckets(build(*[""] * layers), nbytes, frozen=False)
        return [(each.stop - each.start) // 112 for each in buckets]

    assert sizes(17, 16 * 448) == [16, 1]
    assert sizes(19, 16 * 448) == [16, 2, 1]
    assert sizes(19, 16 * 448 - 8) == [16, 3]  # a parameter is more than a sixteenth
    assert sizes(19, 19 * 448) == [19]


def test_statistics_between_weights_do_not_cut_buckets() -> None:
    net: Any = Sketch(read_net("models/resnet50/train_val.prototxt"))
    sizes = [each.nbytes >> 20 for each in find_buckets(net, 16 << 20, frozen=False)]
    assert sizes == [20, 17, 17, 17, 17, 7, 0]


def test_aligned_buckets_hold_the_same_elements() -> None:
    given = [Bucket(0, 100, 9), Bucket(100, 230, 7), Bucket(230, 240, 4), Bucket(240, 400, 2)]
    assert align(given, 64) == [Bucket(0, 64, 9), Bucket(64, 192, 7), Bucket(192, 400, 2)]
    assert align([], 64) == []


def test_ranks_divide_all_but_a_small_last_bucket() -> None:
    large, small = Bucket(0, UNDIVIDED, 2), Bucket(0, UNDIVIDED // 4, 1)
    divided, whole = "reduce_scatter", "all_reduce"
    assert sums_of([large, large, small], "sharded") == [divided, divided, whole]
    assert sums_of([small, small, large], "sharded") == [divided] * 3
    assert sums_of([small], "sharded") == [divided]
    assert sums_of([large, small], "none") == [whole] * 2
    assert sums_of([large, small], "overlapped") == ["reduce"] * 2


@pytest.mark.parametrize(
    ("kind", "separable", "chosen", "told"),
    [
        (CopyEngine, True, "sharded", "--propagation sharded --comm copy"),
        (CopyEngine, False, "none", "clipping, or a loss scale"),
        (Nccl, True, "none", "copy engines do not move them"),
        (Serial, True, "none", ""),
    ],
)
def test_propagation(
    kind: type, separable: bool, chosen: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    comm = object.__new__(kind)  # it is only asked what it is
    with caplog.at_level(logging.INFO, logger="osucaffe"):
        assert choose_propagation(comm, separable=separable) == chosen
    assert told in caplog.text


CONVOLUTIONS = (
    'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [2, 16, 6, 6] } } }'
    'layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 16 '
    'kernel_size: 3 weight_filler { type: "msra" } bias_filler { value: 0.5 } } }'
    'layer { name: "s" type: "Scale" bottom: "c" top: "s" scale_param { bias_term: true '
    "filler { value: 2 } bias_filler { value: 0.25 } } }"
    'layer { name: "ip" type: "InnerProduct" bottom: "s" top: "y" inner_product_param { '
    'num_output: 16 weight_filler { type: "msra" } bias_filler { value: 0.125 } } }'
    'layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 }'
)


@needs_compilers
@pytest.mark.parametrize("propagation", ["blocking", "overlapped", "sharded"])
def test_biases_come_with_16_bit_copies(propagation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward reads some of them in 32 bits, and weights themselves are not sent."""
    backend = emulate(monkeypatch, "bf16")
    nets = [build_net(CONVOLUTIONS, backend, phase="TRAIN", seed=n) for n in (1, 2)]
    config = ParallelConfig("layerwise", propagation, bucket=1 << 10)  # type: ignore[arg-type]
    optimizer: Any = SimpleNamespace(separable=False)
    sent: dict[tuple[int, int], np.ndarray] = {}

    def exchange(rank: int) -> Collectives:
        def travel(operation: Operation, array: np.ndarray, stream: Any) -> Any:
            whole = made._copies.array  # type: ignore[union-attr]
            first = (array.ctypes.data - whole.ctypes.data) // 2
            own = part(len(array), 2, 0)[1] if propagation == "sharded" else len(array)
            if rank == 0:
                sent[first, own] = array[:own].copy()
            else:
                array[:own] = sent[first, own]
            return SimpleNamespace(wait=lambda stream: None)

        comm: Any = SimpleNamespace(rank=rank, size=2, part=lambda count: part(count, 2, rank))
        comm.collective = travel
        made = Collectives(comm, nets[rank], optimizer, config, int)
        return made

    both = [exchange(rank) for rank in (0, 1)]
    biases = [each for each in nets[1].parameters if len(each.blob.shape) < 2]
    for each in biases:
        backend.write(each.blob.data, np.zeros(each.blob.shape, np.float32))
    for each in both:
        before = each.bind(each.plan.of_pass(accumulate=False, update=True).before)
        for layer in sorted(before):
            before[layer]()
    wanted, found = (backend.read(net.arena.data) for net in nets)
    came = np.concatenate([
        (found == wanted)[start : start + each.blob.data.count]
        for start, _, each in nets[1].arena.segments if each in biases
    ])  # fmt: skip
    assert came.all() if propagation != "sharded" else 0.2 < came.mean() < 0.8
    if propagation != "sharded":
        x = np.random.default_rng(1).standard_normal((2, 16, 6, 6))
        for net in nets:
            net.write("x", x)
            net.forward()
        assert nets[0].loss() == nets[1].loss()
