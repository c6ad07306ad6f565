"""Bad parameters are refused by one message that names the layer, its type and the field."""

from __future__ import annotations

import re

import pytest

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.errors import UserError

from .nets import build, inputs

X = (2, 4, 5, 6)
VECTOR = (6, 4)

CASES = [
    # type, settings, shapes of the bottoms, field, what the message says
    ("ReLU", "", [X, X], "bottom", "needs 1, but the net gives it 2"),
    ("Concat", "", [], "bottom", "needs at least 1, but the net gives it 0"),
    ("Convolution", "kernel_size: 3", [X], "convolution_param.num_output", "at least 1"),
    ("Convolution", "num_output: 2", [X], "convolution_param.kernel_size", "missing"),
    ("Convolution", "num_output: 2 kernel_size: 0", [X], "convolution_param.kernel_size", "is 0"),
    ("Convolution", "num_output: 2 kernel_size: 7", [X], "convolution_param.kernel_size",
     "7x7 with pad 0x0 does not fit an image of 5x6"),
    ("Convolution", "num_output: 2 kernel_size: 3 dilation: 3", [X],
     "convolution_param.kernel_size", "7x7"),
    ("Convolution", "num_output: 2 kernel_h: 3", [X], "convolution_param.kernel_h", "kernel_w"),
    ("Convolution", "num_output: 2 kernel_size: 3 kernel_h: 3", [X],
     "convolution_param.kernel_h", "combined with kernel_size"),
    ("Convolution", "num_output: 2 kernel_h: 3 kernel_w: 3", [(2, 4, 5)],
     "convolution_param.kernel_h", "2 spatial axes"),
    ("Convolution", "num_output: 2 kernel_size: [1, 1, 1]", [X],
     "convolution_param.kernel_size", "given 3 times"),
    ("Convolution", "num_output: 2 kernel_size: 3 stride: 0", [X], "convolution_param.stride",
     "is 0"),
    ("Convolution", "num_output: 2147483648 kernel_size: 3", [X], "param",
     "shape (2147483648, 4, 3, 3): more than 2147483647 elements"),
    ("InnerProduct", "num_output: 4294967295", [X], "param", "more than 2147483647"),
    ("Convolution", "num_output: 2 kernel_size: 1 pad: 1000000", [X], "top", "more than"),
    ("Pooling", "kernel_size: 3 stride: 2147483648", [X], "pooling_param.stride", "at most"),
    ("Convolution", "num_output: 3 group: 2 kernel_size: 3", [X], "convolution_param.group",
     "must divide 4 channels and 3 outputs"),
    ("Convolution", "num_output: 3 axis: 4 kernel_size: 3", [X], "convolution_param.axis",
     "axis 4 is out of range for a blob of 4 dimensions"),
    ("Deconvolution", "num_output: 2 kernel_size: 1 pad: 9", [X],
     "convolution_param.kernel_size", "does not fit"),
    ("Im2col", "kernel_size: 9", [X], "convolution_param.kernel_size", "does not fit"),
    ("InnerProduct", "", [X], "inner_product_param.num_output", "at least 1"),
    ("InnerProduct", "num_output: 2 axis: -5", [X], "inner_product_param.axis", "out of range"),
    ("Pooling", "kernel_size: 3", [(2, 3)], "bottom", "N x C x H x W"),
    ("Pooling", "", [X], "pooling_param.kernel_size", "missing"),
    ("Pooling", "kernel_size: 2 pad: 2", [X], "pooling_param.pad", "less than kernel 2"),
    ("Pooling", "kernel_size: 9", [X], "pooling_param.kernel_size", "does not fit"),
    ("Pooling", "kernel_size: 1 stride: 3", [X], "pooling_param.stride", "round_mode: FLOOR"),
    ("BN", "scale_filler { } frozen: true", [X], "bn_param.scale_filler", "of SegNet's form, but"),
    ("BN", "", [(3,)], "bottom", "N x C"),
    ("Upsample", "", [X, (2, 4, 5, 5)], "bottom[1]", "must be the mask"),
    ("Upsample", "upsample_h: 9", [X, X], "upsample_param.upsample_h", "needs upsample_w"),
    ("Upsample", "scale: 3 pad_out_w: true", [X, X], "upsample_param.pad_out_w", "scale of 2"),
    ("BilinearInterpolation", "", [X, (3, 5)], "bottom[1]", "has shape (3, 5)"),
    ("ChannelScale", "", [X, (2, 3)], "bottom[1]", "must hold 60 numbers: (2, 1, 5, 6)"),
    ("Interp", "", [X], "interp_param", "needs height and width"),
    ("Interp", "height: 0 width: 3", [X], "interp_param", "0 x 3"),
    ("Interp", "zoom_factor: 0", [X], "interp_param.zoom_factor", "at least 1"),
    ("Interp", "zoom_factor: 2 pad_beg: 1", [X], "interp_param.pad_beg", "must be 0, or less"),
    ("Interp", "zoom_factor: 2 pad_end: -5", [X], "interp_param.pad_beg", "leave nothing of 5x6"),
    ("Normalize", "normalize_type: 'L3'", [X], "normalize_param.normalize_type",
     "one of L2, L1"),
    ("Pooling", "global_pooling: true kernel_h: 2", [X], "pooling_param.kernel_h",
     "global_pooling"),
    ("Pooling", "global_pooling: true pad: 2", [X], "pooling_param.pad", "global_pooling"),
    ("Pooling", "pool: STOCHASTIC kernel_size: 3 pad: 1", [X], "pooling_param.pad", "MAX and AVE"),
    ("SPP", "pyramid_height: 0", [X], "spp_param.pyramid_height", "at least 1"),
    ("SPP", "pyramid_height: 4", [X], "spp_param.pyramid_height", "into 4 windows"),
    ("LRN", "local_size: 4", [X], "lrn_param.local_size", "odd"),
    ("LRN", "", [VECTOR], "bottom", "N x C x H x W"),
    ("ArgMax", "", [()], "bottom", "single number"),
    ("Concat", "axis: 0", [(3,), ()], "bottom[1]", "has shape ()"),
    ("Dropout", "dropout_ratio: 1", [X], "dropout_param.dropout_ratio", "is 1"),
    ("Softmax", "axis: 4", [X], "softmax_param.axis", "out of range"),
    ("SoftmaxWithLoss", "", [X, (2,)], "bottom[1]", "must hold 60 labels, one for each position"),
    ("Accuracy", "top_k: 5", [VECTOR, (6,)], "accuracy_param.top_k", "1 .. 4"),
    ("Accuracy", "", [VECTOR, (5,)], "bottom[1]", "must hold 6 labels"),
    ("Concat", "axis: 1", [X, (2, 4, 5, 5)], "bottom[1]", "axis 1"),
    ("Concat", "axis: 1 concat_dim: 1", [X], "concat_param.axis", "concat_dim"),
    ("Slice", "slice_point: 1 slice_point: 2", [X], "slice_param.slice_point", "1 tops need 0"),
    ("Tile", "tiles: 0", [X], "tile_param.tiles", "at least 1"),
    ("Reshape", "shape { dim: 7 }", [X], "reshape_param.shape", "does not hold the 240"),
    ("Reshape", "shape { dim: -1 dim: -1 }", [X], "reshape_param.shape", "one dim may be -1"),
    ("Reshape", "shape { dim: 0 } axis: -1", [X], "reshape_param.shape", "no such axis"),
    ("Reshape", "shape { dim: 7 } axis: 2 num_axes: 3", [X], "reshape_param.num_axes", "is 3"),
    ("Flatten", "axis: 2 end_axis: 1", [X], "flatten_param.end_axis", "before axis 2"),
    ("Crop", "offset: 3", [X, (2, 4, 3, 3)], "crop_param.offset", "beyond 5"),
    ("Crop", "axis: 1 offset: 1 offset: 1", [X, X], "crop_param.offset", "1 number or 3"),
    ("PixelShuffle", "upscale_factor: 3", [X], "pixel_shuffle_param.upscale_factor", "4 channels"),
    ("BatchReindex", "", [X, (2, 2)], "bottom[1]", "one axis"),
    ("Scale", "axis: 3", [X, (2, 4)], "bottom[1]", "does not match"),
    ("Scale", "axis: 3 num_axes: 2", [X], "scale_param.num_axes", "exceed"),
    ("Bias", "axis: 9", [X], "bias_param.axis", "out of range"),
    ("PReLU", "", [(3,)], "bottom", "N x C"),
    ("Eltwise", "", [X, VECTOR], "bottom[1]", "must be (2, 4, 5, 6), as bottom[0]"),
    ("Eltwise", "coeff: 1", [X, X], "eltwise_param.coeff", "each of 2 bottoms"),
    ("Eltwise", "operation: MAX coeff: 1 coeff: 1", [X, X], "eltwise_param.coeff", "for SUM"),
    ("Reduction", "axis: 4", [X], "reduction_param.axis", "out of range"),
    ("ArgMax", "top_k: 7 axis: 3", [X], "argmax_param.top_k", "1 .. 6"),
    ("Clip", "min: 2 max: 1", [X], "clip_param.min", "more than max"),
    ("Exp", "base: -2", [X], "exp_param.base", "positive"),
    ("Log", "base: 1", [X], "log_param.base", "is 1"),
    ("Embed", "num_output: 2", [(3,)], "embed_param.input_dim", "at least 1"),
    ("MVN", "", [(3,)], "bottom", "N x C"),
    ("LayerNorm", "axis: 7", [X], "layer_norm_param.axis", "out of range"),
    ("EuclideanLoss", "", [X, VECTOR], "bottom[1]", "batch"),
    ("EuclideanLoss", "", [VECTOR, (6, 5)], "bottom[1]", "(6, 5)"),
    ("ContrastiveLoss", "", [VECTOR, VECTOR, (6, 2)], "bottom[2]", "each of the pairs"),
    ("HingeLoss", "", [VECTOR, (6, 2)], "bottom[1]", "6 labels"),
    ("InfogainLoss", "", [VECTOR, (6,)], "infogain_loss_param.source", "missing"),
    ("InfogainLoss", 'source: "/no/such/file"', [VECTOR, (6,)], "infogain_loss_param.source",
     "/no/such/file: cannot read it"),
    ("Parameter", "", [], "parameter_param.shape", "at least 1"),
    ("Parameter", "shape { dim: 3 dim: -2 }", [], "parameter_param.shape", "(3, -2)"),
    ("Python", 'layer: "Own"', [X], "python_param.module", "is missing"),
    ("Python", 'module: "math"', [X], "python_param.layer", "is missing"),
    ("InfogainLoss", "", [VECTOR, (6,), (3, 3)], "bottom[2]", "4 x 4"),
    ("LSTM", "", [(4, 2, 3), (4, 2)], "recurrent_param.num_output", "at least 1"),
    ("LSTM", "num_output: 2", [(4, 2, 3), (2, 4)], "bottom[1]", "must be (4, 2)"),
    ("LSTM", "num_output: 2 expose_hidden: true", [(4, 2, 3), (4, 2)], "bottom", "needs 4"),
    ("LSTMUnit", "", [(1, 2, 3), (1, 2, 9), (1, 2)], "bottom[1]", "(1, 2, 12)"),
]  # fmt: skip

MESSAGES = {
    "Im2col": "convolution_param", "Deconvolution": "convolution_param", "LSTM": "recurrent_param",
    "ArgMax": "argmax_param", "InnerProduct": "inner_product_param", "ReLU": "relu_param",
    "SoftmaxWithLoss": "softmax_param", "PReLU": "prelu_param", "PixelShuffle":
    "pixel_shuffle_param", "LayerNorm": "layer_norm_param",
    "InfogainLoss": "infogain_loss_param",
}  # fmt: skip


@pytest.mark.parametrize(("type_", "settings", "shapes", "field", "text"), CASES)
def test_message_names_layer_and_field(type_, settings, shapes, field, text) -> None:
    names = dict(zip("abcde", shapes, strict=False))
    message = MESSAGES.get(type_, f"{type_.lower()}_param")
    body = f"{message} {{ {settings} }}" if settings else ""
    bottoms = "".join(f' bottom: "{name}"' for name in names)
    net = f'layer {{ name: "culprit" type: "{type_}"{bottoms} top: "top" {body} }}'
    if type_ == "LSTMUnit":
        net = net.replace('top: "top"', 'top: "top" top: "h"')
    with pytest.raises(UserError) as caught:
        build(inputs(names) + net, Cpu())
    start = re.escape(f'layer "culprit" ({type_}), {field}: ')
    assert re.match(start, str(caught.value)), caught.value
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("type_", "settings", "entries", "text"),
    [
        ("InnerProduct", "inner_product_param { num_output: 2 bias_term: false }", 2,
         "has 2 entries, but the layer takes 1"),
        ("ReLU", "", 1, "has 1 entry, but the layer takes none"),
        ("BatchNorm", "", 4, "has 4 entries, but the layer takes 3"),
    ],
)  # fmt: skip
def test_no_more_param_entries_than_parameters(type_, settings, entries, text) -> None:
    culprit = (
        f'layer {{ name: "culprit" type: "{type_}" bottom: "x" top: "y" {settings} '
        + "param { lr_mult: 0 } " * entries
        + "}"
    )
    with pytest.raises(UserError) as caught:
        build(inputs({"x": X}) + culprit, Cpu())
    assert str(caught.value) == f'layer "culprit" ({type_}), param: {text}'


def test_statistics_are_not_learned() -> None:
    net = inputs({"x": X}) + (
        'layer { name: "norm" type: "BatchNorm" bottom: "x" top: "y" '
        "param { lr_mult: 0 } param { lr_mult: 1 } }"
    )
    with pytest.raises(UserError, match=r'"norm" \(BatchNorm\), param\[1\].lr_mult: must be 0'):
        build(net, Cpu())
