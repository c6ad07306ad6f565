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


def test_outputs_then_other_blobs(nets: tuple[caffe.Net, caffe.Net]) -> None:
    net, plain = nets
    feed(1, net, plain)
    outputs = net.forward()
    np.testing.assert_allclose(outputs["prob"], plain.forward()["prob"], rtol=1e-5)
    assert net._forward_only.is_stale
    feed(2, net)  # blobs are those of the pass before
    same(net, plain, ["conv", "pool", "prob"])
    assert not net._forward_only.is_stale
    same(net, plain, list(net.blobs)[1:])
    feed(2, plain)
    same(net, plain, ["data"])
    net.forward(), plain.forward()
    same(net, plain, ["conv"])  # it has been looked at: now it is there
    assert net._forward_only.is_stale
    same(net, plain, list(net.blobs))


def test_named_blobs_come_with_the_outputs(nets: tuple[caffe.Net, caffe.Net]) -> None:
    net, plain = nets
    feed(1, net, plain)
    found, wanted = (each.forward(blobs=["pool", "scaled"]) for each in nets)
    assert net._forward_only.is_stale
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5)


def test_parameters_may_change_at_any_time(
    nets: tuple[caffe.Net, caffe.Net], tmp_path: Path
) -> None:
    net, plain = nets
    held = [each.params["conv"][0].data for each in nets]
    for step in range(3):
        feed(step, net, plain)
        net.forward(), plain.forward()
        same(net, plain, ["prob"])
        for each, array in zip(nets, held, strict=True):
            array[0, 0] += 1
            each.params["scale"][1].data[...] -= 0.25
    plain.save(str(tmp_path / "w.caffemodel"))
    for each in nets:
        each.params["ip"][0].data[...] = 0
        each.forward()
        each.copy_from(str(tmp_path / "w.caffemodel"))
        each.forward()
    same(net, plain, ["prob", "ip"])


def test_arrays_that_a_script_holds_follow(nets: tuple[caffe.Net, caffe.Net]) -> None:
    held = [[each.blobs["scaled"].data, each.blobs["pool"].data[1:3, 0]] for each in nets]
    for step in range(3):
        feed(step, *nets)
        for each in nets:
            each.forward()
        assert nets[0]._forward_only.is_stale
        for mine, other in zip(*held, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


def test_what_a_script_writes_to_a_blob_stays(nets: tuple[caffe.Net, caffe.Net]) -> None:
    net, plain = nets
    feed(1, net, plain)
    for each in nets:
        each.forward(blobs=["pool"])
        each.blobs["pool"].data[0] = 1
        each.blobs["prob"].data[1] = 2
        assert each.blobs["conv"].data.shape == (4, 5, 4, 5)
        np.testing.assert_array_equal(each.blobs["prob"].data[1], 2)
        each.forward(start="ip")
    same(net, plain, list(net.blobs))


@pytest.mark.parametrize("is_held", [False, True])
def test_a_blob_looked_at_late_is_of_the_parameters_that_the_pass_had(
    nets: tuple[caffe.Net, caffe.Net], tmp_path: Path, is_held: bool
) -> None:
    net, plain = nets
    plain.save(str(tmp_path / "weights"))
    held = [each.params["conv"][0].data for each in nets] if is_held else []
    feed(1, net, plain)
    for each in nets:
        each.forward()
        each.params["conv"][0].data[...] *= 2
    same(net, plain, ["conv", "pool"])
    feed(2, net, plain)
    for each in nets:
        each.forward()
        each.copy_from(str(tmp_path / "weights"))
        each.blobs["prob"].diff[...] = np.arange(12).reshape(4, 3)
        each.backward()
    same(net, plain, list(net.blobs))
    for mine, other in zip(net.params["conv"], plain.params["conv"], strict=True):
        np.testing.assert_allclose(mine.diff, other.diff, rtol=1e-4, atol=1e-4)
    assert len(held) == 2 * is_held


def test_what_is_left_to_compute_survives_other_parameters_and_other_inputs(
    nets: tuple[caffe.Net, caffe.Net], tmp_path: Path
) -> None:
    other = caffe.Net(write(tmp_path, NET), caffe.TEST)
    feed(1, *nets)
    for each in nets:
        each.forward()
        each.share_with(other)
    feed(2, *nets)
    other.params["conv"][0].data[...] = 1
    same(*nets, list(nets[0].blobs)[1:])
    assert (other.params["conv"][0].data == 1).all()


def test_a_small_change_beside_a_large_number_counts(tmp_path: Path) -> None:
    nets = two_nets(tmp_path, TOWERS)
    held = [each.params["ip"][0].data for each in nets]
    assert held[0].size == 4096
    for array in held:
        array[0] = 1e5
    for value in 0, 0.01:
        for each, array in zip(nets, held, strict=True):
            each.blobs["data"].data[...] = 1
            array[1, 5] += value
            each.forward()
        found, wanted = (each.blobs["ip"].data[:, 1:] for each in nets)  # not what 1e5 rounds to
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


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


def test_arrays_of_one_net_change_the_other_that_shares_its_parameters(
    nets: tuple[caffe.Net, caffe.Net], tmp_path: Path
) -> None:
    net, plain = nets
    sharing = caffe.Net(write(tmp_path, NET), caffe.TEST)
    sharing.share_with(net)
    for size in 2, 3:
        for each in net, plain:
            each.blobs["data"].reshape(size, 3, 6, 7)
        feed(1, net, plain, sharing)
        net.forward(), sharing.forward()
        for each in sharing, plain:
            each.params["ip"][0].data[0] += size
        net.forward(), plain.forward()
        same(net, plain, ["prob"])


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


def test_parts_of_a_pass_and_backward(nets: tuple[caffe.Net, caffe.Net]) -> None:
    net, plain = nets
    for each in nets:
        feed(1, each)
        each.forward()
        feed(2, each)
        each.forward(start="pool")  # from what conv made of the first
        each.blobs["prob"].diff[...] = np.arange(12).reshape(4, 3)
        each.backward()
    same(net, plain, list(net.blobs))
    for name in net.params:
        for mine, other in zip(net.params[name], plain.params[name], strict=True):
            np.testing.assert_allclose(mine.diff, other.diff, rtol=1e-4, atol=1e-4)
    feed(3, net, plain)
    net.forward(), plain.forward()
    for each in nets:
        each.blobs["prob"].diff[...] = 1 / 3
        each.blobs["prob"].diff[:, 0] = 2
        each.backward()
    np.testing.assert_allclose(
        net.params["ip"][0].diff, plain.params["ip"][0].diff, rtol=1e-4, atol=1e-4
    )


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


def test_parameters_of_another_net(nets: tuple[caffe.Net, caffe.Net]) -> None:
    net, plain = nets
    net.forward()
    net.share_with(plain)
    for change in 0.5, 1.5:
        plain.params["conv"][1].data[...] += change
        feed(1, net, plain)
        net.forward(), plain.forward()
        same(net, plain, ["prob"])


def test_an_unknown_precision_is_refused():
    with pytest.raises(UserError, match="precision 'half': it must be one of fp32, tf32"):
        caffe.set_precision("half")
