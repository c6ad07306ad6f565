"""The fast forward pass of TEST nets: what a script sees is what the net as it is computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import osucaffe.pycaffe as caffe
from osucaffe.errors import UserError
from osucaffe.pycaffe.forward_only import MAX_REQUESTED
from tests.differential.sessions import TOWERS

from .nets import FUSED as NET
from .nets import SIMPLE, SOLVER, SSD_BOXES, YOLO_BOXES, feed, label, same, two_nets, write


def test_a_net_that_samples_computes_all_its_blobs_by_the_same_draws(tmp_path: Path) -> None:
    drop = (
        'layer { name: "drop" type: "Dropout" bottom: "pool" top: "drop" '
        "dropout_param { sample_weights_test: true } }"
    )
    text = NET.replace('layer { name: "ip"', drop + 'layer { name: "ip"')
    text = text.replace('bottom: "pool" top: "ip"', 'bottom: "drop" top: "ip"')
    net = caffe.Net(write(tmp_path, text), caffe.TEST)
    feed(1, net)
    samples = []
    for _ in range(2):
        net.forward()
        samples.append(net.blobs["ip"].data.copy())
        weights, bias = (blob.data for blob in net.params["ip"])
        wanted = net.blobs["drop"].data.reshape(4, -1) @ weights.T + bias
        np.testing.assert_allclose(samples[-1], wanted, rtol=1e-4, atol=1e-5)
    assert np.abs(samples[0] - samples[1]).max() > 0.01


@pytest.mark.parametrize("is_first", [False, True])
def test_nets_that_share_parameters_know_of_each_others_changes(
    nets: tuple[caffe.Net, caffe.Net], tmp_path: Path, is_first: bool
) -> None:
    """One of two nets writes, or learns, or reads a file."""
    net, plain = nets
    plain.save(str(tmp_path / "weights"))
    train = caffe.Net(write(tmp_path, NET.replace("0.5", "0.2"), "train.prototxt"), caffe.TRAIN)
    train.copy_from(str(tmp_path / "weights"))
    writer, reader = (net, train) if is_first else (train, net)
    reader.share_with(writer)
    plain_like = caffe.Net(write(tmp_path, NET), caffe.TEST)
    plain_like._forward_only = None
    feed(1, net, plain_like, train)
    held = [net.params["conv"][0].data]
    for step in range(6):
        if step == 2:
            held.clear()
        if step % 3 == 0:
            train.params["conv"][0].data[0] += 1
        elif step % 3 == 1:
            train.forward()  # gathers statistics
        else:
            train.copy_from(str(tmp_path / "weights"))
        train.save(str(tmp_path / "now"))
        plain_like.copy_from(str(tmp_path / "now"))
        net.forward(), plain_like.forward()
        same(net, plain_like, ["prob"])


def test_a_solver_trains_what_a_net_shares(tmp_path: Path) -> None:
    solver = caffe.SGDSolver(
        write(tmp_path, f'net: "{write(tmp_path, SIMPLE, "train")}" ' + SOLVER, "solver.prototxt")
    )
    deploy = (
        'input: "data" input_shape { dim: 5 dim: 2 dim: 3 dim: 4 }'
        + SIMPLE[SIMPLE.index('layer { name: "conv"') : SIMPLE.index('layer { name: "loss"')]
    )
    nets = [caffe.Net(write(tmp_path, deploy), caffe.TEST) for _ in range(2)]
    nets[1]._forward_only = None
    for net in nets:
        solver.share_weights(net)
    feed(1, *nets)
    label(solver.net)
    for _ in range(3):
        before = nets[0].forward()["ip_blob"].copy()
        nets[1].forward()
        solver.step(1)
        same(*nets, ["conv"])  # of the weights before
        nets[0].forward(), nets[1].forward()
        same(*nets, ["ip_blob"])
        assert np.abs(nets[0].blobs["ip_blob"].data - before).max() > 1e-3


def test_blobs_that_a_reshape_does_not_reach_are_kept(tmp_path: Path) -> None:
    nets = two_nets(tmp_path, TOWERS)
    for net in nets:
        net.blobs["side"].data[...] = 1
        net.forward()
        net.blobs["data"].reshape(4, 6)
        net.reshape()
    same(nets[0], nets[1], ["left", "square", "right"])


@pytest.mark.parametrize("head", [SSD_BOXES, YOLO_BOXES], ids=["SSD", "YOLO"])
def test_a_net_that_ends_in_boxes_is_folded_and_has_as_many_rows(tmp_path: Path, head: str) -> None:
    net, plain = two_nets(tmp_path, NET[: NET.index('layer { name: "ip"')] + head)
    for each in net, plain:
        each.params["bn"][0].data[...] = 0.1
        each.params["bn"][1].data[...] = each.params["bn"][2].data[...] = 1
    rows = set()
    for step in range(8):
        feed(step, net, plain)
        net.forward(), plain.forward()
        names = ["found"] if step < 4 else ["again", "found"]
        assert all(net.blobs[name].shape == plain.blobs[name].shape for name in names)
        same(net, plain, names)
        rows.add(plain.blobs["found"].shape[2])
    assert len(rows) > 1
    fast = [call.name for call in net._forward_only._fast.programs[0]]
    assert "batch_norm" not in fast


STATISTICS = 'top: "bn" batch_norm_param { use_global_stats: false }'
OWN_DATA = """layer { name: "d" type: "DummyData" top: "data" dummy_data_param {
  shape { dim: 4 dim: 3 dim: 6 dim: 7 } data_filler { type: "gaussian" } } }"""


@pytest.mark.parametrize(
    "text",
    [
        NET.replace('top: "bn"', STATISTICS),
        NET.replace('input: "data" input_shape { dim: 4 dim: 3 dim: 6 dim: 7 }', OWN_DATA),
    ],
    ids=["gather statistics", "bring data"],
)
def test_nets_whose_passes_do_more_run_as_they_are(tmp_path: Path, text: str) -> None:
    net = caffe.Net(write(tmp_path, text), caffe.TEST)
    assert net._forward_only is None
    net.forward()


def test_who_is_called_back_sees_the_blobs_of_the_pass_before(
    nets: tuple[caffe.Net, caffe.Net],
) -> None:
    seen: list[np.ndarray] = []
    for each in nets:
        feed(1, each)
        each.forward()
        feed(2, each)
        each.before_forward(lambda i, each=each: seen.append(each.blobs["pool"].data.copy()))
        each.forward()
    np.testing.assert_allclose(seen[0], seen[len(seen) // 2], rtol=1e-5, atol=1e-5)


def test_a_script_that_calls_back_or_looks_at_everything_gets_the_net_as_it_is(
    nets: tuple[caffe.Net, caffe.Net],
) -> None:
    net, plain = nets
    seen: list[int] = []
    net.after_forward(seen.append)
    feed(1, net, plain)
    net.forward(), plain.forward()
    assert seen == list(range(len(net.layers)))
    same(net, plain, list(net.blobs))
    net._after_forward.clear()
    net._forward_only.want(f"made up {i}" for i in range(MAX_REQUESTED + 1))
    net.forward()
    assert not net._forward_only.is_stale
    same(net, plain, list(net.blobs))


def test_an_unknown_precision_is_refused():
    with pytest.raises(UserError, match="precision 'half': it must be one of fp32, tf32"):
        caffe.set_precision("half")


def test_weights_that_are_held_may_change_at_any_time(tmp_path: Path) -> None:
    net, plain = two_nets(tmp_path, NET.replace("num_output: 5", "num_output: 500"))
    plain.params["bn"][2].data[...] = 1
    plain.save(str(tmp_path / "statistics"))
    net.copy_from(str(tmp_path / "statistics"))
    feed(1, net, plain)
    net.forward()
    held = [[blob.data for row in each.params.values() for blob in row] for each in (net, plain)]
    generator = np.random.default_rng(2)
    for _ in range(12):
        index = int(generator.integers(len(held[0])))
        at, value = int(generator.integers(held[0][index].size)), generator.normal()
        if generator.random() < 0.7:
            for arrays in held:
                arrays[index].reshape(-1)[at] = abs(value)
        late = generator.random() < 0.3
        for each in (net, plain):
            each.forward()
        if late:  # a blob is looked at when a weight has been written since
            for arrays in held:
                arrays[0][...] *= 1.5
        for name in ("scaled", "prob") if late else ("prob",):
            wanted = plain.blobs[name].data
            np.testing.assert_allclose(net.blobs[name].data, wanted, atol=1e-5 * abs(wanted).max())
