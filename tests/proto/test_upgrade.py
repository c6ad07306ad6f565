"""Checks the upgrade of V1 nets, input fields, batch norms and solvers."""

from pathlib import Path

import pytest

from osucaffe.errors import UserError
from osucaffe.proto import (
    NetParameter,
    SolverParameter,
    caffe_pb2,
    parse_text,
    read_net,
    read_text,
    upgrade_net,
    upgrade_solver,
)
from osucaffe.proto.upgrade import _SOLVER_TYPES


def upgraded(text: str) -> NetParameter:
    return upgrade_net(parse_text(text, NetParameter))


def test_as_caffes_own_tool(formats: Path) -> None:
    assert read_net(formats / "v1.prototxt") == read_text(
        formats / "v1_upgraded.prototxt", NetParameter
    )


def test_leaves_its_argument_and_new_nets_alone(formats: Path) -> None:
    old = read_text(formats / "v1.prototxt", NetParameter)
    before = old.SerializeToString()
    new = upgrade_net(old)
    assert old.SerializeToString() == before
    assert upgrade_net(new) == new


def test_every_old_type_has_a_name() -> None:
    types = caffe_pb2.V1LayerParameter.LayerType
    net = upgrade_net(NetParameter(layers=[{"type": number} for number in types.values()]))
    names = {layer.type.upper() for layer in net.layer}
    letters = {name.replace("_", "") for name, _ in types.items()}
    assert names - letters == {"", "SOFTMAXWITHLOSS"}
    assert len(names) == len(types.values())
    assert [name.upper() for name in _SOLVER_TYPES] == SolverParameter.SolverType.keys()


def test_every_v1_field_is_carried_over() -> None:
    """Each V1 field but the four lists of ParamSpec and V0's has the same name and type now."""
    new = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name
    special = {"type", "param", "blob_share_mode", "blobs_lr", "weight_decay", "layer"}
    for name, field in caffe_pb2.V1LayerParameter.DESCRIPTOR.fields_by_name.items():
        if name not in special:
            assert new[name].message_type is field.message_type
            assert new[name].type == field.type


def test_v1_layer() -> None:
    net = upgraded("""
        layers { name: "a" type: SOFTMAX_LOSS bottom: "x" top: "y" loss_weight: 2
          param: "w" param: "b" blob_share_mode: PERMISSIVE blobs_lr: 1 blobs_lr: 2 blobs_lr: 3
          weight_decay: 0 include { phase: TRAIN } exclude { stage: "s" }
          loss_param { ignore_label: 7 } blobs { num: 1 channels: 1 height: 1 width: 1 data: 5 } }
    """)
    expected = parse_text(
        """
        layer { name: "a" type: "SoftmaxWithLoss" bottom: "x" top: "y" loss_weight: 2
          param { name: "w" share_mode: PERMISSIVE lr_mult: 1 decay_mult: 0 }
          param { name: "b" lr_mult: 2 } param { lr_mult: 3 }
          include { phase: TRAIN } exclude { stage: "s" }
          loss_param { ignore_label: 7 } blobs { num: 1 channels: 1 height: 1 width: 1 data: 5 } }
        """,
        NetParameter,
    )
    assert net == expected


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("DATA", "data_param"),
        ("IMAGE_DATA", "image_data_param"),
        ("WINDOW_DATA", "window_data_param"),
    ],
)
def test_transformation_fields_move(kind: str, field: str) -> None:
    old = 'scale: 0.5 mean_file: "m" crop_size: 8 mirror: true'
    net = upgraded(f'layers {{ type: {kind} {field} {{ source: "s" {old} }} }}')
    layer = net.layer[0]
    assert parse_text(old, caffe_pb2.TransformationParameter) == layer.transform_param
    assert getattr(layer, field) == type(getattr(layer, field))(source="s")


def test_no_transformation_when_none_was_given() -> None:
    assert not upgraded("layers { type: DATA }").layer[0].HasField("transform_param")


@pytest.mark.parametrize(
    "shapes",
    [
        "input_shape { dim: 1 dim: 2 dim: 3 dim: 4 } input_shape { dim: 5 dim: 6 dim: 7 dim: 8 }",
        " ".join(f"input_dim: {i}" for i in range(1, 9)),
    ],
)
def test_inputs_become_the_first_layer(shapes: str) -> None:
    net = upgraded(f'input: "a" input: "b" {shapes} layer {{ name: "r" type: "ReLU" }}')
    first, second = net.layer
    assert (first.name, first.type, list(first.top)) == ("input", "Input", ["a", "b"])
    assert [list(s.dim) for s in first.input_param.shape] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert second.name == "r"
    assert not net.input
    assert not net.input_shape
    assert not net.input_dim


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('input: "a" input_dim: 1 input_dim: 2', "four input_dim"),
        ('input: "a" input_shape { dim: 1 } input_shape { dim: 2 }', "1 input and shapes for 2"),
        ('layer { name: "a" } layers { name: "b" }', 'both "layer" and old "layers"'),
    ],
)
def test_senseless_old_nets(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "n.prototxt").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_net(tmp_path / "n.prototxt")
    assert str(error.value).startswith(str(tmp_path / "n.prototxt: "))


def test_statistics_of_batch_norm_are_not_learned() -> None:
    three = "param { lr_mult: 1 } param { decay_mult: 1 } param { }"
    net = upgraded(f'layer {{ type: "BatchNorm" {three} }} layer {{ type: "Scale" {three} }}')
    assert [(p.lr_mult, p.decay_mult) for p in net.layer[0].param] == [(0, 0)] * 3
    assert [(p.lr_mult, p.decay_mult) for p in net.layer[1].param] == [(1, 1)] * 3


def test_solver_type_becomes_a_string() -> None:
    solver = upgrade_solver(parse_text("solver_type: ADADELTA base_lr: 1", SolverParameter))
    assert solver == SolverParameter(type="AdaDelta", base_lr=1)
    with pytest.raises(UserError, match="both solver_type and type"):
        upgrade_solver(parse_text('solver_type: SGD type: "Adam"', SolverParameter))


def test_nets_inside_a_solver_are_upgraded() -> None:
    net = "layers { type: RELU }"
    solver = upgrade_solver(
        parse_text(
            f"net_param {{ {net} }} train_net_param {{ {net} }} test_net_param {{ {net} }}",
            SolverParameter,
        )
    )
    for inner in (solver.net_param, solver.train_net_param, *solver.test_net_param):
        assert [layer.type for layer in inner.layer] == ["ReLU"]
        assert not inner.layers
