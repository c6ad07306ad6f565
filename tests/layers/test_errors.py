"""Bad parameters are refused by one message that names the layer, its type and the field."""

from __future__ import annotations

import re

import pytest

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.errors import UserError

from .nets import build, inputs, refuse

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
    ("Deconvolution", "kernel_h: 2000 kernel_w: 1000 num_output: 1", [X],
     "convolution_param.kernel_size", "2000 x 1000: more than 1,048,576"),
    ("BatchReindex", "", [(), (2,)], "bottom[0]", "has no axis"),
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


SQUARES = [(1, 3, 4, 4)] * 3
MEANFIELD = (
    '"MultiStageMeanfield" multi_stage_meanfield_param { theta_alpha: 4 theta_beta: 0.5 '
    "theta_gamma: 2 num_iterations: 3 %s }"
)
REGION = '"RegionLoss" region_loss_param { num: 2 num_class: 3 %s }'
MAPS = '"DetectionLoss" detection_loss_param { field_w: 8 field_h: 8 %s }'
SEVEN = "".join(f' top: "{name}"' for name in "abcdefg")

REFUSED = [
    # type, settings (and tops, if not one), shapes of the bottoms, message
    ('"BoxOutput" box_output_param { field_w: 3 field_h: [1, 2] }', [(1, 6, 3, 3)],
     r"box_output_param\.field_h: needs 1, one for each"),
    ('"BoxOutput" box_output_param { field_w: 3 field_h: 2 downsample_rate: 8 nms_type: "MAX" }',
     [(1, 6, 3, 3)], r'box_output_param\.nms_type: is "MAX": IOU, IOMU or IOFU'),
    ('"BoxOutput" box_output_param { field_w: 3 field_h: 2 downsample_rate: 8 }', [(1, 5, 3, 3)],
     r"bottom\[0\]: has shape .* two classes"),
    ('"BoxGroupOutput" box_group_output_param { box_group_param { field_w: [8, 9] field_h: [8, 9] '
     "stride: 8 } }", [(4, 2, 3, 3), (2, 4, 3, 3)],
     r"bottom\[1\]: has shape .* 2 images of 2 fields"),
    ('"BoxGroupOutput" box_group_output_param { }', [(4, 2, 3, 3), (4, 4, 3, 3)],
     "group_param: there are 0, but 2 bottoms"),
    ('"DecodeBBox" bbox_reg_param { bbox_mean: 0 bbox_std: 1 }', [(4, 8), (4, 5)],
     "bbox_reg_param: needs four"),
    ('"DecodeBBox"', [(4, 8), (3, 5)], r"bottom\[1\]: .* must be 4 x 5"),
    ('"DecodeBBox"', [(4, 8), (4, 5), (4, 6)], r"bottom\[2\]: is for training"),
    (f'"ProposalTarget" {SEVEN}', [(4, 5), (2, 8)], "cls_num: must be at least 2"),
    (f'"ProposalTarget" {SEVEN}', [(4, 5), (2, 6)], r"bottom\[1\]: .* N x 7 or N x 8"),
    (f'"ScaleRoute" {SEVEN}', [(4, 5), (3, 8)], "top: needs 2, but the net gives it 7"),
    (f'"HardMining" {SEVEN}', [(4, 1), (3, 5)], r"bottom\[1\]: .* must be 4 x 5"),
    ('"DetectionLoss" detection_loss_param { cls_num: 3 }', [(2, 7, 4, 5), (2, 6, 4, 5)],
     "needs as many field_w"),
    (MAPS % "cls_num: 2 downsample_rate: 8", [(2, 7, 4, 5), (2, 6, 4, 5)],
     r"bottom\[0\]: has shape \(2, 7, 4, 5\), but must be \(2, 6, 4, 5\)"),
    (MAPS % "cls_num: 3 downsample_rate: 8 objectness: true", [(2, 7, 4, 5), (2, 6, 4, 5)],
     "cls_num: must be at least 2, and 2 where objectness"),
    ('"ROIPooling"', [(1, 4, 6, 6), (3, 5)], "roi_pooling_param.pooled_h: must be at least 1"),
    ('"PSROIPooling" psroi_pooling_param { spatial_scale: 1 output_dim: 2 group_size: 3 }',
     [(1, 4, 6, 6), (3, 5)],
     r"bottom\[0\]: has shape \(1, 4, 6, 6\), but must be \(1, 18, 6, 6\): output_dim"),
    ('"ROIWarping" roi_warping_param { pooled_h: 2 }', [(1, 4, 6, 6), (3, 5)],
     "roi_warping_param.pooled_w: must be at least 1"),
    ('"MaskPooling"', [(1, 4, 6, 6), (3, 5)],
     r"bottom\[1\]: has shape \(3, 5\), but must be \(1, 1, 6, 6\)"),
    ('"ROIAlign" roi_pooling_param { pooled_h: 2 pooled_w: 2 }', [(1, 4, 6, 6), (3, 4)],
     r"bottom\[1\]: has shape \(3, 4\), but must be R x 5"),
    ('"Reorg" reorg_param { stride: 2 }', [(1, 6, 4, 4)], "square must divide 6 channels"),
    ('"Reorg" reorg_param { stride: 2 }', [(1, 8, 3, 4)], "2, which must divide 3 x 4"),
    (REGION % "", [(1, 15, 3, 3), (1, 1, 4, 8)],
     r"bottom\[0\]: has shape .* must be \(1, 16, 3, 3\): 2 anchors of 5 \+ 3 numbers"),
    (REGION % "side: 3", [(1, 16, 3, 3), (1, 1, 4, 8)],
     "biases: needs widths and heights of 2 anchors, but has 0"),
    (REGION % "", [(1, 16, 3, 3), (1, 1, 4, 8)],
     r"region_loss_param.side: is 13, but bottom\[0\] has"),
    (REGION % "", [(2, 16, 3, 3), (2,)],
     r"bottom\[1\]: has shape \(2,\), but must be 1 x 1 x M x 8"),
    ('"Yolov3" yolov3_param { num: 2 num_class: 3 biases: 3 biases: 4 mask: 0 mask: 1 }',
     [(1, 16, 3, 3), (1, 4, 5)],
     r"yolov3_param.mask: is \[0, 1\], but must name 2 of 1 anchors"),
    ('"Yolov3DetectionOutput" yolov3_detection_output_param { mask_group_num: 2 }', [(1, 75, 3, 3)],
     "mask_group_num: and anchors_scale must be of 1 bottoms"),
    (MEANFIELD.replace("0.5", "0") % "", SQUARES,
     "multi_stage_meanfield_param.theta_beta: must be above 0"),
    (MEANFIELD % "spatial_filter_weights_str: '1 2'", SQUARES,
     "spatial_filter_weights_str: has 2 numbers, but there are 3 channels"),
    (MEANFIELD % "spatial_filter_weights_str: '1 2 x'", SQUARES, '"x" is not a number'),
    (MEANFIELD % "", [*SQUARES[:1], (1, 2, 4, 4), *SQUARES[:1]],
     r"bottom\[1\]: has shape \(1, 2, 4, 4\)"),
    (MEANFIELD % "", [*SQUARES[:2], (1, 3, 8, 8)], r"bottom\[2\]: has shape \(1, 3, 8, 8\)"),
    ('"Convolution3D" convolution3d_param { kernel_size: 2 num_output: 1 kernel_depth: 1 }',
     [(1, 2, 4, 4)], "must be N x C x frames x H x W"),
    ('"Convolution3D" convolution3d_param { kernel_size: 2 num_output: 1 }', [(1, 2, 4, 4, 4)],
     "convolution3d_param.kernel_depth: must be"),
    ('"Convolution3D" convolution_param { kernel_size: 2 kernel_depth: 1 stride: [1, 2] }',
     [(1, 2, 4, 4, 4)], "C3D has one, for height and width"),
    ('"Pooling3D" pooling3d_param { kernel_size: 2 kernel_depth: 1 pad: 1 }', [(1, 2, 4, 4, 4)],
     "3d_param.pad: is for AVE"),
    ('"Pooling3D" pooling3d_param { kernel_size: 2 pool: AVE kernel_depth: 1 pad: 1 stride: 2 }',
     [(1, 2, 4, 5, 5)], "lets the last windows lie in the padding"),
    ('"Pooling3D" pooling3d_param { kernel_size: 2 pool: STOCHASTIC kernel_depth: 1 }',
     [(1, 2, 4, 4, 4)], "must be MAX or AVE"),
    ('"Lstm" lstm_param { num_output: 5 batch_size: 2 }', [(7, 3)],
     "lstm_param.batch_size: is 2, but x is"),
    ('"Lstm"', [(7, 3)], "lstm_param.num_output: must be at least 1"),
    ('"SeLuDropout" selu_dropout_param { dropout_ratio: 1 }', [(3, 4)], "dropout_ratio: is 1.0"),
    ('"GlobalLSEMargin"', [(2, 3, 1), (2,)], r"bottom\[0\]: has shape \(2, 3, 1\)"),
    ('"GlobalLSEMargin"', [(2, 3), (3,)], r"bottom\[1\]: has shape \(3,\), but must hold 2"),
    ('"MarginInnerProduct"', [(2, 3), (2,)], "num_output: must be at least 1"),
    ('"MarginInnerProduct" margin_inner_product_param { num_output: 2 }', [(2, 3), (3,)],
     r"bottom\[1\]: has shape \(3,\), but must hold 2 labels"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shapes", "message"), REFUSED)
def test_what_does_not_fit_is_refused(text: str, shapes, message: str) -> None:
    top = "" if " top: " in text else ' top: "y"'
    refuse(f"type: {text}{top}", shapes, message)
