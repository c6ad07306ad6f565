"""Checks the upgrade of V0 nets, Caffe's first form."""

import pytest

from osucaffe.errors import UserError
from osucaffe.proto import NetParameter, caffe_pb2, parse_text, upgrade_net
from osucaffe.proto.upgrade_v0 import _COMMON, _PARAMETERS, _TYPES

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
