"""The upgrade of V0 and V1 nets, input fields, batch norms and solvers."""

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
from osucaffe.proto.upgrade_v0 import _COMMON, _PARAMETERS, _TYPES


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


OLD = """
name: "old" input: "x" input_dim: 1 input_dim: 2 input_dim: 3 input_dim: 4 force_backward: true
layers { layer { name: "data" type: "data" source: "db" batchsize: 4 scale: 0.5 meanfile: "m"
  cropsize: 7 mirror: true rand_skip: 3 } top: "d" top: "l" }
layers { layer { name: "pad" type: "padding" pad: 2 } bottom: "d" top: "p" }
layers { layer { name: "conv" type: "conv" num_output: 8 kernelsize: 5 stride: 2 group: 2
  biasterm: false weight_filler { type: "xavier" } blobs_lr: 1 blobs_lr: 2 weight_decay: 1
  weight_decay: 0 blobs { num: 1 data: 3 } } bottom: "p" top: "c" }
layers { layer { name: "pool" type: "pool" pool: AVE kernelsize: 3 stride: 2 }
  bottom: "c" top: "o" }
layers { layer { name: "norm" type: "lrn" local_size: 3 alpha: 0.1 beta: 0.5 }
  bottom: "o" top: "n" }
layers { layer { name: "drop" type: "dropout" dropout_ratio: 0.3 } bottom: "n" top: "n" }
layers { layer { name: "ip" type: "innerproduct" num_output: 9 } bottom: "n" top: "i" }
layers { layer { name: "loss" type: "softmax_loss" } bottom: "i" bottom: "l" }
"""
NEW = """
name: "old" force_backward: true
layer { name: "input" type: "Input" top: "x"
  input_param { shape { dim: 1 dim: 2 dim: 3 dim: 4 } } }
layer { name: "data" type: "Data" top: "d" top: "l"
  data_param { source: "db" batch_size: 4 rand_skip: 3 }
  transform_param { scale: 0.5 mean_file: "m" crop_size: 7 mirror: true } }
layer { name: "conv" type: "Convolution" bottom: "d" top: "c"
  param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  blobs { num: 1 data: 3 }
  convolution_param { num_output: 8 pad: 2 kernel_size: 5 stride: 2 group: 2 bias_term: false
    weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "c" top: "o"
  pooling_param { pool: AVE kernel_size: 3 stride: 2 } }
layer { name: "norm" type: "LRN" bottom: "o" top: "n"
  lrn_param { local_size: 3 alpha: 0.1 beta: 0.5 } }
layer { name: "drop" type: "Dropout" bottom: "n" top: "n" dropout_param { dropout_ratio: 0.3 } }
layer { name: "ip" type: "InnerProduct" bottom: "n" top: "i"
  inner_product_param { num_output: 9 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "i" bottom: "l" }
"""


def test_a_v0_net_becomes_todays() -> None:
    assert upgrade_net(parse_text(OLD, NetParameter)) == parse_text(NEW, NetParameter)


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (
            "images",
            "new_height: 2 shuffle_images: true",
            "image_data_param { new_height: 2 shuffle: true }",
        ),
        (
            "window_data",
            'det_crop_mode: "square"',
            'window_data_param { crop_mode: "square" }',
        ),
        (
            "hdf5_output",
            'hdf5_output_param { file_name: "f" }',
            'hdf5_output_param { file_name: "f" }',
        ),
        ("concat", "concat_dim: 0", "concat_param { concat_dim: 0 }"),
    ],
)
def test_fields_of_other_types(kind: str, fields: str, expected: str) -> None:
    net = upgrade_net(parse_text(f'layers {{ layer {{ type: "{kind}" {fields} }} }}', NetParameter))
    net.layer[0].ClearField("type")
    assert net == parse_text(f"layer {{ {expected} }}", NetParameter)


def test_the_tables_name_real_fields() -> None:
    old = caffe_pb2.V0LayerParameter.DESCRIPTOR.fields_by_name
    v1 = caffe_pb2.V1LayerParameter.DESCRIPTOR.fields_by_name
    for kind, (place, names) in _PARAMETERS.items():
        target = v1[place].message_type.fields_by_name if place else v1
        assert kind in _TYPES
        assert set(names) <= set(old)
        assert set(names.values()) <= set(target)
    own = [names for _, names in _PARAMETERS.values()]
    reached = {"type"}.union(*_COMMON.values(), *own)
    # Two fields of a layer type that V0 nets never had a name for; pad also serves "padding".
    assert set(old) - reached == {"new_num", "new_channels"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('layers { layer { name: "a" type: "cnv" } }', '"a" is of unknown type "cnv"'),
        ('layers { layer { name: "a" type: "relu" stride: 2 } }', 'cannot have a field "stride"'),
        (
            'layers { layer { type: "padding" pad: 1 } bottom: "x" top: "y" }'
            'layers { layer { name: "r" type: "relu" } bottom: "y" top: "z" }',
            '"r" of type "relu" takes padded input',
        ),
        (
            'layers { layer { type: "relu" } } layers { name: "b" type: RELU }',
            '"b" mixes the forms of V0 and V1',
        ),
    ],
)
def test_senseless_v0_nets(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        upgrade_net(parse_text(text, NetParameter))
