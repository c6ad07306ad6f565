"""Split inner products: which are split, what is refused, what travels, and that snapshots go on
with another number of ranks. That they train as all others do is a part of `equivalence.py`.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.cli.launch.ranks import check_communication
from osucaffe.comm.algorithms import Operation
from osucaffe.comm.communicator import Serial
from osucaffe.comm.tuning.table import Selection
from osucaffe.errors import UserError
from osucaffe.layers.base import Context
from osucaffe.net import Net
from osucaffe.parallel.config import ParallelConfig
from osucaffe.parallel.plan import Update, UpdateAll
from osucaffe.proto import NetParameter, parse_text
from osucaffe.study.cluster import Cluster, Device, Link
from osucaffe.study.designs.split import SplitInnerProducts
from osucaffe.study.messages import Planner
from osucaffe.study.script import Ask, Compute, Ranks, plan_of, write
from osucaffe.study.sketch import Sketch
from tests.comm.ranks import mpiexec, needs_mpi
from tests.parallel.equivalence import SPLIT
from tests.parallel.program import saved, train, write_run

from .test_designs import options

SOLVER = """
net: "net.prototxt" test_iter: 3 test_interval: 6 base_lr: 0.05 momentum: 0.9 clip_gradients: 0.5
lr_policy: "fixed" max_iter: 18 random_seed: 5 snapshot: 6 snapshot_prefix: "run" display: 6
"""
TEXT = """
layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: {rows} dim: 31 }} }} }}
layer {{ name: "fc" type: "InnerProduct" bottom: "x" top: "y" {param}
  inner_product_param {{ num_output: {outputs} weight_filler {{ type: "xavier" }} {more} }} }}
layer {{ name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 }}
"""


def planner(size: int) -> Planner:
    link = Link(1.0, 1.0)
    return Planner(Cluster("", size, Device(), link, link), size, Selection())


def splitter(wanted: str = "auto", size: int = 4, passes: int = 1) -> SplitInnerProducts:
    """Of rank 0, whose operations are noted."""
    return SplitInnerProducts(Ranks(planner(size)), wanted, passes)


def sketch(
    wanted: str = "auto", rows: int = 8, outputs: int = 64, passes: int = 1, **text: str
) -> Sketch:
    net = TEXT.format(rows=rows, outputs=outputs, **({"param": "", "more": ""} | text))
    return Sketch(parse_text(net, NetParameter), splitter=splitter(wanted, passes=passes))


def test_auto_splits_what_sends_fewer_bytes_so() -> None:
    """32 x 64 weights and biases; of r rows on 4 ranks r (4 x 31 + 64) activations."""
    assert sketch(rows=10).arena.is_split  # 1,880
    assert not sketch(rows=11).arena.is_split  # 2,068
    assert sketch(rows=5, passes=2).arena.is_split
    assert not sketch(rows=6, passes=2).arena.is_split
    assert not sketch(rows=1, outputs=63).arena.is_split
    assert not sketch(rows=1, param='param { name: "w" }').arena.is_split
    assert not sketch(rows=1, param="param { lr_mult: 0 }").arena.is_split
    assert not sketch(rows=1, more="transpose: true").arena.is_split


def test_parts_are_aligned_on_a_gpu() -> None:
    layer: Any = sketch(rows=1).layers[1]
    layer.context = Context(SimpleNamespace(name="cuda"))
    splits = splitter().splits
    assert splits(layer, 1, 32, 64, "")
    assert not splits(layer, 1, 32, 32, "")
    assert not splits(layer, 1, 31, 64, "")
    assert splits(layer, 2, 40, 256, "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ({"outputs": 63}, "its 63 outputs cannot be divided among 4 ranks"),
        ({"param": 'param { name: "w" }'}, "its parameters have names"),
        ({"more": "normalize: true"}, "it has transpose, normalize, or another axis"),
    ],
)
def test_a_layer_that_cannot_be_split(text: Any, told: str) -> None:
    with pytest.raises(UserError, match=rf'"fc".*--split_inner_products cannot split it: {told}'):
        sketch("fc", **text)


def test_names_and_communicators_that_do_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    net: Any = sketch("fc")
    with pytest.raises(UserError, match="the training net has no InnerProduct 'fc9'"):
        splitter("fc,fc9").report(net)
    with caplog.at_level(logging.INFO, logger="osucaffe"):
        splitter("fc").report(net)
    assert "Split among 4 ranks: fc; 0.0 of 0.0 MB of gradients no longer travel" in caplog.text
    comm: Any = SimpleNamespace(has_all_to_all=False)
    with pytest.raises(UserError, match="--comm ipc and copy do not have: give --comm nccl"):
        SplitInnerProducts(comm, "auto", 1)


@pytest.mark.parametrize(
    "other",
    ["--compression sign", "--local_steps 2", "--gradient_type float16", "--servers 1",
     "--propagation sharded", "--bucket_mb auto", "--reproducible"],
)  # fmt: skip
def test_what_does_not_go_together(other: str) -> None:
    with pytest.raises(UserError, match="--split_inner_products.*" + other.split()[0]):
        check_communication(options("--split_inner_products", "auto", *other.split()))


def test_parts_lie_behind_what_travels() -> None:
    """Rank 0 owns a quarter of weights and biases, and is alone in updating it."""
    arena = sketch().arena
    assert (arena.shared, arena.learned) == (0, 64 + 31 * 64)
    owned = [(stop - start, each.index) for start, stop, each in arena.owned(0, len(arena))]
    assert owned == [(16, 1), (31 * 16, 0)]


def test_a_prediction_sends_what_training_does() -> None:
    found = sketch()
    events = write(plan_of(found, ParallelConfig(), planner(4), separable=True), found)
    gathered, swapped = 4 * 8 * 31, 2 * 8 * 64
    forward = events.index(Compute("forward", 1))
    assert events[forward - 1] == Ask(Operation.ALL_GATHER, gathered)
    assert events[forward + 1] == Ask(Operation.ALL_TO_ALL, swapped)
    backward = events.index(Compute("backward", 1))
    assert events[backward - 1] == Ask(Operation.ALL_TO_ALL, swapped)
    [update] = [event for event in events if isinstance(event, Update | UpdateAll)]
    owned = found.arena.owned(0, found.arena.learned)
    assert (update, sum(stop - start for start, stop, _ in owned)) == (
        UpdateAll(), (64 + 31 * 64) // 4
    )  # fmt: skip


def test_alone_it_is_an_inner_product_like_any_other() -> None:
    net = parse_text(TEXT.format(rows=2, outputs=4, param="", more=""), NetParameter)
    alone = Net(net, backend=Cpu(), splitter=SplitInnerProducts(Serial(), "fc", 1), seed=1)
    plain = Net(net, backend=Cpu(), seed=1)
    for each in alone, plain:
        each.write("x", [[1.0] * 31, [2.0] * 31])
        each.forward()
    assert alone.layers[1].is_split
    assert alone.read("y") == pytest.approx(plain.read("y"))


@needs_mpi
@pytest.mark.parametrize("split", [(), ("--split_inner_products", "fc6,fc7")], ids=["", "split"])
def test_snapshots_go_on_with_other_numbers_of_ranks(tmp_path: Path, split: tuple[str]) -> None:
    write_run(tmp_path, SOLVER, net=SPLIT)
    train(tmp_path, 1)
    whole = saved(tmp_path / "run_iter_18.caffemodel")
    for ranks, end in (2, 6), (4, 12), (1, 18):
        state = ("--snapshot", f"run_iter_{end - 6}.solverstate") if end > 6 else ()
        more = ("--scal", "strong", "--max_iter", str(end), *state, *split)
        log = train(tmp_path, ranks, *more)
        assert ("Split among" in log) == (bool(split) and ranks > 1)
    assert saved(tmp_path / "run_iter_18.caffemodel") == pytest.approx(whole, rel=1e-4, abs=1e-6)


@needs_mpi
def test_bytes_that_travel(tmp_path: Path) -> None:
    """By --comm_profile: the gradients of fc6 and fc7 do not, their inputs and outputs do."""
    write_run(tmp_path, SOLVER, batch=3, net=SPLIT)
    found = []
    for split in (), ("--split_inner_products", "fc6,fc7"):
        train(tmp_path, 2, *split, "--comm_profile", "out.json")
        rows = json.loads((tmp_path / "out.json").read_text())["operations"]
        found.append({row["operation"]: row["bytes"] for row in rows})
    plain, split_bytes = found
    # fc6: 200 inputs, 384 outputs; fc7: 384 outputs without biases
    assert plain["all_reduce"] - split_bytes["all_reduce"] >= 4 * (384 * 201 + 384 * 384)
    gathered = 4 * 2 * 3 * (200 + 384)
    assert split_bytes["all_gather"] == split_bytes["reduce_scatter"] == gathered
    assert split_bytes["all_to_all"] == 2 * 2 * 4 * 3 * (384 + 384)


@needs_mpi
@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("local_lr_auto", "larc, local_lr_auto and LAMB need norms of"),
        ("debug_info", "debug_info shows"),
        ("snapshot_diff", "snapshot_diff saves gradients of"),
    ],
)
def test_what_needs_whole_parameters_is_refused(tmp_path: Path, field: str, told: str) -> None:
    write_run(tmp_path, f"{SOLVER} {field}: true", net=SPLIT)
    command = ["train", "--solver", "solver.prototxt", "--split_inner_products", "fc6"]
    done = mpiexec(2, "-m", "osucaffe", *command, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count(f"{told} whole parameters, but each rank holds only a slice") == 1
