"""Fields of forks are read by name; what nothing makes use of is refused or told, not dropped.

layers/fields and solvers/test_fields.py show it of each field.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.layer import layer_types
from osucaffe.net import Net
from osucaffe.proto import (
    NetParameter,
    SolverParameter,
    caffe_pb2,
    is_unread,
    parse_text,
    refuse_unread,
    upgrade_net,
)
from osucaffe.proto.unread_fields import IDLE, UNREAD
from osucaffe.solvers import Solver

FIELDS = [  # "message field" of all that forks have and Caffe has not
    tuple(line.split(": ", 1)[1].split()[:2])
    for line in Path(__file__).with_name("forks.txt").read_text().splitlines()
    if re.search(r" = \d+ (optional|repeated|required) ", line)
]


def setting(text: str, layer_type: str = "Pooling") -> NetParameter:
    """A net of an input and one layer with these settings."""
    return parse_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [1, 2, 5, 5] } } } '
        f'layer {{ name: "op" type: "{layer_type}" bottom: "x" top: "y" {text} }}',
        NetParameter,
    )


def test_types_of_v1_nets() -> None:
    net = parse_text(
        'layers { name: "a" type: CROP bottom: "x" bottom: "y" top: "z" } layers { name: "b" '
        'type: BN bottom: "z" top: "n" bn_param { bn_mode: LEARN } } layers { name: "c" '
        "type: MULTI_STAGE_MEANFIELD multi_stage_meanfield_param { theta_alpha: 160 theta_beta: 3 "
        "theta_gamma: 3 num_iterations: 10 } }",
        NetParameter,
    )
    crop, bn, crf = upgrade_net(net).layer
    assert [crop.type, bn.type, crf.type] == ["Crop", "BN", "MultiStageMeanfield"]
    assert crop.crop_param.align
    assert bn.bn_param.HasField("bn_mode")
    assert crf.multi_stage_meanfield_param.theta_alpha == 160


@pytest.mark.parametrize(
    ("layer_type", "param", "field"),
    [("Pooling", "pooling", "temporal_stride"), ("Convolution", "convolution", "kernel_depth")],
)
def test_what_is_not_read_yet_is_refused(layer_type: str, param: str, field: str) -> None:
    with pytest.raises(UserError) as error:
        Net(setting(f"{param}_param {{ {field}: 2 }}", layer_type), backend=Cpu())
    expected = (
        f'layer "op" ({layer_type}), {param}_param.{field}: is not supported yet (a field of '
    )
    assert str(error.value).startswith(expected)


def test_transformations_are_refused_by_data_layers(tmp_path: Path) -> None:
    net = parse_text(
        'layer { name: "d" type: "Data" top: "d" data_param { source: "x" batch_size: 1 '
        "backend: LMDB } transform_param { resize_param { height: 300 width: 300 } } }",
        NetParameter,
    )
    with pytest.raises(UserError, match=r'"d" \(Data\), transform_param\.resize_param: is not'):
        Net(net, backend=Cpu())


@pytest.mark.parametrize(
    "text",
    [
        "pooling_param { kernel_size: 2 ceil_mode: true }",
        "pooling_param { kernel_size: 2 temporal_stride: 1 }",
        # Another type's settings, which Caffe does not look at either.
        "pooling_param { kernel_size: 2 } convolution_param { kernel_depth: 3 }",
        'engine: "MKL2017" pooling_param { kernel_size: 2 engine: MKLDNN }',
    ],
)
def test_what_says_nothing_is_taken(text: str) -> None:
    Net(setting(text), backend=Cpu())


def test_defaults_that_are_not_whole_say_nothing_either() -> None:
    refuse_unread(parse_text("max_momentum: 0.99", SolverParameter), "")
    with pytest.raises(UserError, match=r"^max_momentum: is not supported yet"):
        refuse_unread(parse_text("max_momentum: 0.98", SolverParameter), "")


def test_a_row_may_name_types_that_read_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UNREAD, "PoolingParameter.temporal_stride", ("C3D", "Pooling"))
    Net(setting("pooling_param { kernel_size: 2 temporal_stride: 2 }"), backend=Cpu())
    assert not is_unread("PoolingParameter", "temporal_stride", "Pooling")
    assert is_unread("PoolingParameter", "temporal_stride", "SPP")


@pytest.mark.parametrize(
    ("layer_type", "text", "told"),
    [
        ("Im2col", "convolution_param { kernel_size: 2 num_output: 3 }",
         "convolution_param.num_output: has no effect: no convolution follows"),
        ("ReLU", "pooling_param { }",
         "pooling_param: has no effect: layers of this type do not read it"),
        ("ConvolutionDepthwise", "convolution_param { kernel_size: 2 num_output: 3 group: 2 }",
         "convolution_param.num_output: has no effect: each of the 2 channels has a filter"),
        ("BatchNorm", "batch_norm_param { filler { value: 1 } }",
         "batch_norm_param.filler: has no effect: the Scale layer that follows has its own (Intel "
         "Caffe computes both as one; add one where none follows)"),
        ("ReLU", "quantization_param { bw_layer_in: 8 }",
         "quantization_param: has no effect: layers of this type do not read it"),
        ("Dropout", "phase: TEST", "phase: works as in TEST, the net is in TRAIN"),
        ("ReLU", "blobs { }", "blobs: has no effect: give weights as a file"),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_told(
    layer_type: str, text: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    Net(setting(text, layer_type), backend=Cpu())
    assert caplog.messages == [f'layer "op" ({layer_type}), {told}']


def test_what_has_no_effect_in_many_layers_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    net = setting("pooling_param { }", "ReLU")
    for name in "ab":
        net.layer.append(net.layer[1])
        net.layer[-1].name, net.layer[-1].top[0] = name, name
    Net(net, backend=Cpu())
    [told] = caplog.messages
    assert told.startswith('layer "op" (ReLU), pooling_param: has no effect')
    assert told.endswith(" (so in 2 more layers)")


def test_two_layers_of_one_name_are_both_looked_at() -> None:
    """Whose fields say which it is, one of them being a class of its own."""
    with pytest.raises(UserError, match=r"normalize_param\.rescale: is not supported yet"):
        Net(setting("normalize_param { rescale: true }", "Normalize"), backend=Cpu())


def test_the_nets_own_fields() -> None:
    net = setting("pooling_param { kernel_size: 2 }")
    net.eltwise_mem_sharing = False
    Net(net, backend=Cpu())
    net.bn_stats_batch_size = 64
    with pytest.raises(UserError, match=r'^net "", bn_stats_batch_size: is not supported yet'):
        Net(net, backend=Cpu())


@pytest.mark.parametrize(
    ("text", "field"),
    [("momentum_power: 2", "momentum_power"), ("larc_turbo: true", "larc_turbo")],
)
def test_solvers(text: str, field: str) -> None:
    param = parse_text(f'base_lr: 1 lr_policy: "fixed" {text}', SolverParameter)
    param.net_param.CopyFrom(setting("pooling_param { kernel_size: 2 }"))
    with pytest.raises(UserError, match=rf"^s\.prototxt: {field}: is not supported yet"):
        Solver(param, Cpu(), file="s.prototxt")


def test_rows_are_of_fields_that_there_are() -> None:
    for row, reasons in IDLE.items():
        message, field = row.split(".")
        assert field in getattr(caffe_pb2, message).DESCRIPTOR.fields_by_name
        assert all(set(types) <= set(layer_types()) for types, _ in reasons)
    for row, (fork, *types) in UNREAD.items():
        assert tuple(row.split(".")) in FIELDS
        assert fork
        assert set(types) <= set(layer_types())
