"""Every gradient against differences of the forward pass, in double precision.

For each input and parameter: the derivative along a random direction, as backward tells it and as
two forward passes do. Each row of the table makes another effect of a layer visible.
"""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.layer import layer_types

from .nets import build, inputs

STEP = 1e-5
TOLERANCE = 1e-6

X = {"x": (2, 4, 5, 6)}
WEIGHTS = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "gaussian" std: 0.5 }'
NOISE = 'filler { type: "gaussian" std: 0.7 }'
LABELS = {"l": 4}
"""Inputs of whole numbers below this: they get no gradient."""


# ruff: noqa: E501 (a table reads best with a row to a line)


def case(type_, settings="", shapes=X, *, tops=1, in_place=False, labels=None, phase="TRAIN",
         positive=False, begin=False, name=""):  # fmt: skip
    """A row: a layer over inputs of these shapes.

    positive: the inputs are above 0. begin: whole numbers of the first step are 0.
    """
    bottoms = "".join(f' bottom: "{each}"' for each in shapes)
    outputs = ["x"] if in_place else [f"y{i}" for i in range(tops)]
    text = f'layer {{ name: "op" type: "{type_}"{bottoms}'
    text += "".join(f' top: "{each}"' for each in outputs) + f" {settings} }}"
    options = {"labels": labels or {}, "phase": phase, "positive": positive, "begin": begin}
    words = [type_, name, "in_place" if in_place else ""]
    return pytest.param(type_, shapes, text, options, id="-".join(w for w in words if w))


CASES = [
    case("Convolution", f"convolution_param {{ num_output: 6 kernel_size: 3 {WEIGHTS} }}"),
    case("Convolution", f"convolution_param {{ num_output: 4 kernel_h: 2 kernel_w: 3 stride_h: 2 "
         f"stride_w: 1 pad_h: 0 pad_w: 2 group: 2 {WEIGHTS} }}", name="by axis"),
    case("Convolution", f"convolution_param {{ num_output: 3 kernel_size: 2 dilation: 2 {WEIGHTS} }}",
         {"x": (2, 2, 5, 4), "z": (2, 2, 5, 4)}, tops=2, name="two bottoms"),
    case("Convolution", f"convolution_param {{ num_output: 3 kernel_size: 2 pad: 1 stride: 2 {WEIGHTS} }}",
         {"x": (2, 2, 3, 4, 5)}, name="3-d"),
    case("Convolution", f"convolution_param {{ num_output: 3 kernel_size: 2 {WEIGHTS} }}",
         {"x": (2, 2, 5)}, name="1-d"),
    case("Convolution", f"convolution_param {{ num_output: 3 axis: 2 kernel_size: 2 {WEIGHTS} }}",
         {"x": (2, 3, 2, 4, 5)}, name="axis 2"),
    case("Convolution", f"convolution_param {{ num_output: 3 axis: -1 {WEIGHTS} kernel_size: 1 }}",
         {"x": (2, 3, 4)}, name="no spatial axis"),
    case("ConvolutionDepthwise", f"convolution_param {{ kernel_size: 3 pad: 1 stride: 2 {WEIGHTS} }}"),
    case("DepthwiseConvolution", f"convolution_param {{ num_output: 8 group: 4 kernel_size: 3 {WEIGHTS} }}"),
    case("Deconvolution", f"convolution_param {{ num_output: 6 kernel_size: 3 {WEIGHTS} }}"),
    case("Deconvolution", f"convolution_param {{ num_output: 4 kernel_size: 3 stride: 2 pad: 1 "
         f"dilation: 2 group: 2 {WEIGHTS} }}", dict.fromkeys("xz", (2, 4, 3, 4)), tops=2, name="two bottoms"),
    case("Convolution3D", f"convolution3d_param {{ num_output: 3 kernel_size: 3 kernel_depth: 2 pad: 1 temporal_pad: 1 stride: 2 {WEIGHTS} }}",
         {"x": (2, 2, 3, 5, 4)}),
    case("Pooling3D", "pooling3d_param { kernel_size: 2 kernel_depth: 3 stride: 2 temporal_stride: 2 }", {"x": (2, 2, 4, 5, 3)}),
    case("Pooling3D", "pooling3d_param { pool: AVE kernel_size: 3 kernel_depth: 2 stride: 2 pad: 1 }", {"x": (2, 2, 4, 5, 4)}, name="AVE"),
    case("Im2col", "convolution_param { kernel_size: 3 stride: 2 pad: 1 dilation: 2 }"),
    case("Im2col", "convolution_param { kernel_size: 2 axis: 2 }", {"x": (2, 3, 2, 4, 5)}, name="axis 2"),
    case("InnerProduct", f"inner_product_param {{ num_output: 5 {WEIGHTS} }}"),
    case("InnerProduct", "inner_product_param { bias_term: false }", {"x": (3, 4, 2), "z": (5, 2, 4)},
         name="weights as a bottom"),
    case("InnerProduct", "inner_product_param { axis: 2 }", {"x": (2, 3, 4), "z": (5, 4), "v": (5,)},
         name="weights and bias as bottoms"),
    case("InnerProduct", f"inner_product_param {{ num_output: 5 axis: -2 transpose: true {WEIGHTS} }}",
         name="transpose"),
    case("Interp", "interp_param { height: 9 width: 4 }"),
    case("Interp", "interp_param { use_blob_size: true }", {"x": (2, 4, 5, 6), "z": (1, 1, 7, 3)},
         labels={"z": 2}, name="as another blob"),
    case("Interp", "interp_param { zoom_factor: 3 shrink_factor: 2 pad_beg: -1 pad_end: -1 }", name="of a part"),
    case("BilinearInterpolation", "", {"x": (2, 3, 4, 5), "like": (2, 1, 7, 3)}, labels={"like": 2}),
    case("SeLu"),
    case("SeLu", "selu_param { lambda: 2 alpha: 0.5 }", in_place=True),
    case("SeLuDropout", "selu_dropout_param { dropout_ratio: 0.4 alpha: -1 }"),
    case("SeLuDropout", "selu_dropout_param { dropout_ratio: 0.4 }", in_place=True),
    case("SeLuDropout", phase="TEST", name="test"),
    case("Lstm", f"lstm_param {{ num_output: 3 batch_size: 2 {WEIGHTS} }}", {"x": (8, 2, 2)}),
    case("Normalize", "normalize_param { }"),
    case("ChannelScale", "", {"x": (2, 3, 4, 5), "s": (2, 1, 4, 5)}),
    case("LabelSpecificAdd", "label_specific_add_param { bias: -0.35 }", {"x": (6, 4), "l": (6,)}, labels=LABELS, phase="TRAIN"),
    case("LabelSpecificRescale", "label_specific_rescale_param { positive_weight: 0.5 negative_weight: 2 for_ip: true }",
         {"x": (6, 4), "l": (6,)}, labels=LABELS, in_place=True),
    case("LabelSpecificRescale", "label_specific_rescale_param { positive_weight: 1.5 power_on_positive: true }",
         {"x": (6, 4), "l": (6,)}, labels=LABELS, name="power"),
    case("LabelSpecificRescale", "label_specific_rescale_param { positive_weight: 0.5 }", {"x": (6, 4), "l": (6,)},
         labels=LABELS, phase="TEST", name="test"),
    case("JSDLoss", "", {"x": (4, 5), "target": (4, 5)}, labels={"target": 2}, positive=True),
    case("DiceCoefLoss", "", {"x": (4, 5), "z": (4, 5)}),
    case("Flip", "flip_param { flip_height: true }"),
    case("Normalize", 'normalize_param { normalize_type: "L1" bp_norm: true }', {"x": (3, 5)}, tops=2, name="L1"),
    case("Upsample", "upsample_param { upsample_h: 60 upsample_w: 70 }", {"x": (2, 3, 2, 3), "m": (2, 3, 2, 3)},
         labels={"m": 60 * 70}),
    case("Upsample", "upsample_param { scale: 3 }", {"x": (2, 3, 2, 4)}, name="one bottom"),
    case("CropCenter", "crop_center_param { crop_size: [0, 1, 1, 2] }"),
    case("Gather", "", {"x": (2, 3), "z": (4,)}, tops=2),
    case("Noise", "noise_param { bias: 0.5 }"),
    case("InnerDistance", f"inner_distance_param {{ num_output: 3 {WEIGHTS} }}", {"x": (4, 2, 3)}),
    case("InnerDistance", f'inner_distance_param {{ num_output: 3 distance_type: "L1" {WEIGHTS} }}', {"x": (4, 6)}, name="L1"),
    case("InnerDistance", "", {"x": (4, 6), "w": (3, 2, 3)}, name="two bottoms"),
    case("GeneralContrastiveLoss", "general_contrastive_loss_param { positive_margin: 0.1 negative_margin: 1.5 positive_weight: 2 negative_weight: 3 }",
         {"x": (6, 4), "l": (6,)}, labels=LABELS, positive=True),
    case("WeightEuclideanLoss", "weight_euclidean_loss_param { main_weight: 1 contour_weight: 2 coarse_weight: 3 }",
         {"x": (3, 136), "t": (3, 2, 68)}),
    case("InnerProduct", f"inner_product_param {{ num_output: 5 normalize: true {WEIGHTS} }}",
         name="normalize"),
    case("InnerProduct", f"inner_product_param {{ num_output: 5 axis: 2 normalize: true bias_term: false {WEIGHTS} }}",
         name="normalize axis"),
    case("Pooling", "pooling_param { kernel_size: 3 stride: 2 }"),
    case("Pooling", "pooling_param { kernel_h: 2 kernel_w: 3 stride_h: 1 stride_w: 2 pad_h: 1 "
         "pad_w: 2 round_mode: FLOOR }", name="by axis"),
    case("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }", name="AVE"),
    case("Pooling", "pooling_param { pool: AVE global_pooling: true }", name="global"),
    case("Pooling", "pooling_param { pool: STOCHASTIC kernel_size: 3 stride: 2 }", positive=True,
         name="STOCHASTIC"),
    case("Pooling", "pooling_param { pool: STOCHASTIC kernel_size: 3 stride: 2 }", positive=True,
         phase="TEST", name="STOCHASTIC test"),
    case("SPP", "spp_param { pyramid_height: 1 }", name="1"),
    case("SPP", "spp_param { pyramid_height: 3 }", {"x": (2, 3, 7, 8)}),
    case("SPP", "spp_param { pyramid_height: 3 pool: AVE }", {"x": (2, 3, 6, 7)}, name="AVE"),
    case("LRN", "lrn_param { local_size: 3 alpha: 2 beta: 0.6 k: 1.5 }"),
    case("LRN", "lrn_param { local_size: 3 alpha: 2 beta: 0.6 norm_region: WITHIN_CHANNEL }",
         name="within"),
    case("BN", f"bn_param {{ scale_{NOISE} shift_{NOISE} }}", name="SegNet"),
    case("BN", f"bn_param {{ scale_{NOISE} bn_mode: INFERENCE }}", in_place=True, name="SegNet"),
    case("BN", f"bn_param {{ slope_{NOISE} bias_{NOISE} eps: 0.1 }}", phase="TRAIN", in_place=True, name="TSN"),
    case("BN", f"bn_param {{ slope_{NOISE} bias_{NOISE} eps: 2 }}", {"x": (7, 3)}, name="TSN"),
    case("BatchNorm", "batch_norm_param { eps: 0.1 }"),
    case("BatchNorm", "batch_norm_param { eps: 0.1 }", {"x": (7, 3)}, in_place=True),
    case("BatchNorm", "", {"x": (7,)}, name="no channels"),
    case("BatchNorm", "batch_norm_param { use_global_stats: true eps: 2 }", in_place=True, name="past"),
    case("BatchNorm", f"batch_norm_param {{ scale_bias: true eps: 0.1 scale_{NOISE} bias_{NOISE} }}", name="affine"),
    case("BatchNorm", f"batch_norm_param {{ scale_bias: true scale_{NOISE} bias_{NOISE} }}", {"x": (7, 3)}, in_place=True, name="affine"),
    case("BatchNorm", f"batch_norm_param {{ scale_bias: true eps: 2 scale_{NOISE} }}", phase="TEST", name="affine past"),
    case("LayerNorm", f"layer_norm_param {{ scale_{NOISE} bias_{NOISE} }}"),
    case("LayerNorm", f"layer_norm_param {{ axis: 1 eps: 0.1 scale_{NOISE} }}", in_place=True),
    case("LayerNorm", "layer_norm_param { scale_bias: false }", name="plain"),
    case("MVN"),
    case("MVN", "mvn_param { across_channels: true }", name="across"),
    case("MVN", "mvn_param { normalize_variance: false }", name="mean"),
    case("Embed", f"embed_param {{ num_output: 3 input_dim: 4 {WEIGHTS} }}", {"l": (5, 2)},
         labels={"l": 4}),
    case("Parameter", "parameter_param { shape { dim: 2 dim: 3 } }", {}),
    case("Dropout", "dropout_param { dropout_ratio: 0.4 }"),
    case("Dropout", "dropout_param { dropout_ratio: 0.4 }", in_place=True),
    case("Dropout", phase="TEST", name="test"),
    case("Dropout", "dropout_param { sample_weights_test: true }", phase="TEST", name="sampled"),
    case("Softmax"),
    case("Softmax", "softmax_param { axis: -1 }", in_place=True),
    case("SoftmaxWithLoss", "loss_weight: 3", {"x": (6, 4), "l": (6,)}, labels={"l": 4}),
    case("SoftmaxWithLoss", "loss_param { weight_by_label_freqs: true class_weighting: [0.2, 3, 1, 2] }",
         {"x": (6, 4, 3), "l": (6, 3)}, labels=LABELS, name="class weights"),
    case("SoftmaxWithLoss", "softmax_param { axis: 2 } loss_param { ignore_label: 1 }",
         {"x": (3, 2, 4, 5), "l": (3, 2, 5)}, labels={"l": 4}, name="ignore"),
    case("SoftmaxWithLoss", "loss_param { normalization: NONE }", {"x": (6, 4), "l": (6,)},
         labels={"l": 4}, name="NONE"),
    case("SoftmaxWithLoss", "loss_param { normalize: false }", {"x": (6, 4, 3), "l": (6, 3)},
         labels={"l": 4}, name="normalize false"),
    case("EuclideanLoss", "loss_weight: 3", dict.fromkeys("xz", (4, 2, 3))),
    case("L1Loss", "loss_weight: 3", dict.fromkeys("xz", (4, 2, 3))),
    case("L1Loss", "loss_param { normalization: FULL }", dict.fromkeys("xz", (4, 2, 3)), name="FULL"),
    case("ContrastiveLoss", "contrastive_loss_param { margin: 3 legacy_version: true }",
         {"x": (6, 2), "z": (6, 2), "l": (6,)}, labels={"l": 2}, name="legacy"),
    case("HingeLoss", "loss_weight: 3", {"x": (6, 4), "l": (6,)}, labels={"l": 4}),
    case("HingeLoss", "hinge_loss_param { norm: L2 }", {"x": (6, 4), "l": (6,)}, labels={"l": 4},
         name="L2"),
    case("MultinomialLogisticLoss", "loss_weight: 3", {"x": (6, 4), "l": (6,)}, labels={"l": 4},
         positive=True),
    case("SigmoidCrossEntropyLoss", "loss_weight: 3", {"x": (6, 4), "l": (6, 4)}, labels={"l": 2}),
    case("SigmoidCrossEntropyLoss", "loss_param { ignore_label: 1 normalization: VALID }",
         {"x": (6, 4), "l": (6, 4)}, labels={"l": 3}, name="ignore"),
    case("SigmoidCrossEntropyLoss", "loss_param { class_balance: 1.1 } loss_weight: 3",
         {"x": (2, 6, 4), "l": (2, 6, 4)}, labels={"l": 3}, name="balanced"),
    case("InfogainLoss", "infogain_loss_param { axis: 2 } loss_weight: 3",
         {"x": (2, 3, 4, 5), "l": (2, 3, 5), "h": (4, 4)}, labels={"l": 4, "h": 5}),
    case("InfogainLoss", "loss_param { ignore_label: 2 }", {"x": (6, 4), "l": (6,), "h": (1, 1, 4, 4)},
         labels={"l": 4, "h": 5}, name="ignore"),
    *(case(each, f"recurrent_param {{ num_output: 3 {WEIGHTS} {exposed} }}",
           {"x": (4, 2, 2, 2), "l": (4, 2)} | statics | states, labels={"l": 2},
           begin=not states, tops=1 + len(states), name=" ".join([*statics, *states]))
      for each, all_states in (("LSTM", "hc"), ("RNN", "h"))
      for statics in ({}, {"static": (2, 3)})
      for exposed, states in (("", {}), ("expose_hidden: true",
                                         dict.fromkeys(all_states, (1, 2, 3))))),
    case("LSTMUnit", "", {"x": (1, 3, 2), "g": (1, 3, 8), "l": (1, 3)}, labels={"l": 2}, tops=2),
    case("Concat", "concat_param { axis: 2 }", {"x": (2, 3, 4), "z": (2, 3, 2), "w": (2, 3, 1)}),
    case("Slice", "slice_param { axis: 2 slice_point: 1 slice_point: 4 }", tops=3),
    case("Slice", tops=2, name="equal"),
    case("Tile", "tile_param { axis: 2 tiles: 3 }"),
    case("Split", tops=3),
    case("Silence", tops=0),
    case("Reshape", "reshape_param { shape { dim: -1 dim: 3 } axis: 2 }"),
    case("Flatten"),
    case("Filter", "", {"x": (5, 2), "z": (5, 3), "l": (5, 1)}, labels={"l": 2}, tops=2),
    case("PixelShuffle", "pixel_shuffle_param { upscale_factor: 3 }", {"x": (2, 18, 2, 3)}),
    case("Crop", "crop_param { axis: -2 offset: 1 offset: 2 }", {"x": (2, 3, 4, 5), "z": (2, 3, 2, 3)}),
    case("BatchReindex", "", {"x": (4, 3), "l": (6,)}, labels={"l": 4}),
    case("ReLU", "relu_param { negative_slope: 0.3 }"),
    case("ReLU", in_place=True),
    case("PReLU", f"prelu_param {{ {NOISE} }}"),
    case("PReLU", f"prelu_param {{ channel_shared: true {NOISE} }}", in_place=True),
    case("Scale", f"scale_param {{ {NOISE} bias_term: true bias_{NOISE} }}"),
    case("Scale", f"scale_param {{ {NOISE} min_value: -9 max_value: 9 bias_term: true }}", name="within bounds"),
    case("Scale", f"scale_param {{ axis: 2 num_axes: -1 {NOISE} }}", in_place=True),
    case("Scale", f"scale_param {{ num_axes: 0 {NOISE} bias_term: true }}", name="scalar"),
    case("Scale", f"scale_param {{ axis: 1 bias_term: true bias_{NOISE} }}", {"x": (2, 3, 4, 5), "z": (3, 4)},
         name="two bottoms"),
    case("Bias", f"bias_param {{ {NOISE} }}"),
    case("Bias", f"bias_param {{ axis: 0 num_axes: 2 {NOISE} }}", in_place=True),
    case("Bias", "bias_param { axis: -2 }", {"x": (2, 3, 4, 5), "z": (4, 5)}, name="two bottoms"),
    case("Eltwise", "eltwise_param { coeff: 2 coeff: -1 coeff: 0.5 }", dict.fromkeys("xzw", (3, 4))),
    case("Eltwise", "eltwise_param { coeff: 2 coeff: -1 }", dict.fromkeys("xz", (3, 4)), in_place=True),
    case("Eltwise", "eltwise_param { operation: PROD }", dict.fromkeys("xzw", (3, 4)), name="PROD"),
    case("Eltwise", "eltwise_param { operation: MAX }", dict.fromkeys("xzw", (3, 4)), name="MAX"),
    case("Reduction", "reduction_param { coeff: 2 }"),
    case("Reduction", "reduction_param { operation: ASUM axis: 1 coeff: -1 }", name="ASUM"),
    case("Reduction", "reduction_param { operation: SUMSQ axis: -1 coeff: 3 }", name="SUMSQ"),
    case("Reduction", "reduction_param { operation: MEAN axis: 2 coeff: 2 }", name="MEAN"),
    *(case(each, settings, in_place=in_place, positive=each == "Log")
      for in_place in (False, True)
      for each, settings in {
          "AbsVal": "", "BNLL": "", "GELU": "", "Sigmoid": "", "TanH": "",
          "Clip": "clip_param { min: -0.4 max: 0.6 }",
          "ELU": "elu_param { alpha: 0.6 }",
          "Exp": "exp_param { base: 3 scale: -0.5 shift: 0.3 }",
          "Log": "log_param { base: 3 scale: 1.5 shift: 0.3 }",
          "Power": "power_param { power: 3 scale: 0.5 shift: 1.5 }",
          "Swish": "swish_param { beta: 1.7 }",
          "ReLU6": "relu6_param { n: 0.6 negative_slope: 0.3 }",
      }.items()),
    case("Axpy", "", {"a": (2, 3, 1, 1), "x": (2, 3, 4, 5), "z": (2, 3, 4, 5)}),
    case("Axpy", "", {"a": (2, 3), "x": (2, 3, 4), "z": (2, 3, 4)}, name="3-d"),
    case("ShuffleChannel", "shuffle_channel_param { group: 3 }", {"x": (2, 6, 4, 5)}),
    case("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 ceil_mode: false }", name="ceil_mode"),
    case("FocalLoss", "loss_weight: 3", {"x": (6, 4), "l": (6,)}, labels={"l": 4}),
    case("FocalLoss", "softmax_param { axis: 2 } focal_loss_param { alpha: 0.7 gamma: 0.8 } "
         "loss_param { ignore_label: 1 normalization: PRE_FIXED pre_fixed_normalizer: 5 }",
         {"x": (3, 2, 4, 5), "l": (3, 2, 5)}, labels={"l": 4}, name="PRE_FIXED"),
    *(case(each, "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 7 } loss_weight: 2",
           {"x": (6, 4), other: shape}, labels={"l": 4 if each == "SoftmaxWithLoss" else 2}, name="PRE_FIXED")
      for each, other, shape in (("SoftmaxWithLoss", "l", (6,)), ("L1Loss", "z", (6, 4)),
                                 ("SigmoidCrossEntropyLoss", "l", (6, 4)))),
    case("Dropout", "dropout_param { dropout_ratio: 0.4 scale_train: false }", name="scale_train"),
    case("Dropout", "dropout_param { dropout_ratio: 0.4 scale_train: false }", in_place=True, phase="TEST", name="scale_train test"),
    case("SmoothL1Loss", "loss_weight: 3", {"x": (4, 2), "z": (4, 2), "l": (4, 2)}, labels={"l": 3}, name="weights inside"),
    case("SmoothL1LossOHEM", "loss_weight: 3", dict.fromkeys("xz", (4, 2, 3, 1))),
    case("SmoothL1LossOHEM", "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 7 }",
         {"x": (4, 2), "z": (4, 2), "l": (4, 2)}, labels={"l": 3}, name="weights"),
    case("SoftmaxWithLossOHEM", "loss_param { ignore_label: 1 }",
         {"x": (6, 4, 1, 2), "l": (6, 1, 2)}, labels={"l": 4}),
    *(case(each, settings, {"x": (2, channels, 5, 6), "r": (7, 5)}, labels={"r": 4}, name=name)
      for each, settings, channels, name in (
          ("ROIPooling", "roi_pooling_param { pooled_h: 2 pooled_w: 3 }", 3, ""),
          ("ROIPooling", "roi_pooling_param { pooled_h: 2 pooled_w: 2 pad_ratio: 0.3 }", 3, "pad"),
          ("ROIAlign", "roi_pooling_param { pooled_h: 2 pooled_w: 3 pad_ratio: 0.3 }", 3, ""),
          ("PSROIPooling", "psroi_pooling_param { output_dim: 2 group_size: 2 spatial_scale: 0.7 }", 8, ""),
          ("ROIWarping", "roi_warping_param { pooled_h: 5 pooled_w: 3 spatial_scale: 1.5 }", 3, ""),
      )),
    case("MultiStageMeanfield", "multi_stage_meanfield_param { theta_alpha: 3 theta_beta: 0.7 theta_gamma: 2 num_iterations: 3 spatial_filter_weight: 0.8 bilateral_filter_weights_str: '1.5 0.5 1' }",
         {"x": (2, 3, 4, 5), "z": (2, 3, 4, 5), "i": (2, 3, 4, 5)}, labels={"i": 4}),
    case("Reorg", "reorg_param { stride: 2 }", {"x": (2, 8, 4, 6)}),
    case("Reorg", "reorg_param { stride: 2 reverse: true }", {"x": (2, 8, 4, 6)}, name="reverse"),
    case("MaskPooling", "", {"x": (3, 4, 5, 6), "m": (3, 1, 5, 6)}),
    case("MaskResize", "mask_resize_param { output_height: 3 output_width: 4 }", name="smaller"),
    case("MaskResize", "mask_resize_param { output_height: 13 output_width: 7 }", name="larger"),
    case("Power", "power_param { scale: 0.5 shift: 1.5 }", in_place=True, name="linear"),
    case("Power", "power_param { power: 0 }", name="constant"),
    case("ReLU", "relu_param { negative_slope: -0.5 }", in_place=True, name="falling"),
    case("Exp", "exp_param { scale: 0.7 }", name="e"),
    case("Log", "", positive=True, name="e"),
    case("Permute", "permute_param { order: 2 order: 0 }"),
    case("Normalize", "norm_param { across_spatial: false channel_shared: false eps: 0.3 "
         "scale_filler { type: 'uniform' min: 0.5 max: 2 } }", name="by place"),
    case("Normalize", "norm_param { eps: 2 scale_filler { value: 3 } }", name="by image"),
    case("SmoothL1Loss", "loss_weight: 3", {"x": (4, 6), "z": (4, 6)}),
    case("SmoothL1Loss", "smooth_l1_loss_param { sigma: 1.7 }",
         {"x": (4, 6), "z": (4, 6), "l": (4, 6), "h": (4, 6)}, labels={"l": 3, "h": 4},
         name="weights"),
]  # fmt: skip


def drawn(random, shapes, options) -> dict[str, np.ndarray]:
    """Values for the inputs of a row."""
    values = {}
    for name, shape in shapes.items():
        values[name] = random.standard_normal(shape)
        if name in options["labels"]:
            values[name] = random.integers(options["labels"][name], size=shape).astype(float)
            values[name][: options["begin"]] = 0
        elif options["positive"]:
            values[name] = np.abs(values[name]) + 0.1
    return values


WITHOUT = {
    "Accuracy", "AnnotatedData", "ArgMax", "BboxAccuracy", "BoxAnnotatorOHEM", "BoxGroupOutput",
    "BoxOutput", "CenterLoss", "Data", "DecodeBBox", "DenseImageData", "DetectNetTransformation",
    "DetectionAccuracy", "DetectionData", "DetectionEvaluate", "DetectionGroupAccuracy",
    "DetectionGroupLoss", "DetectionLoss", "DetectionOutput", "DummyData", "EvalData",
    "EvalDetection", "FrcnnOutput", "GlobalLSEMargin", "HDF5Data", "HDF5Output", "HardMining",
    "ImageData", "ImageFloatData", "ImageGtData", "ImageLabelmapData", "ImageSegData", "Input", "MarginInnerProduct",
    "MatWrite", "MemoryData", "MultiBoxLoss", "PatchData", "PriorBox", "PriorBoxClustered", "Proposal", "ProposalTarget", "Python",
    "RegionLoss", "ScaleRoute", "SegAccuracy", "SegData", "Threshold", "VideoData", "WindowData", "YoloDetectionOutput", "Yolov3",
    "Yolov3DetectionOutput",
}  # fmt: skip
"""Types that have no gradient, or one that users write (Python), or that tests of their own hold
against the fork's."""


@pytest.mark.parametrize(("type_", "shapes", "text", "options"), CASES)
def test_gradient_is_the_slope_of_forward(type_, shapes, text, options) -> None:
    backend = Cpu(dtype="float64")
    text = "force_backward: true\n" + inputs(shapes) + text
    net = build(text, backend, phase=options["phase"], inspectable=True)
    random = np.random.default_rng(7)
    values = drawn(random, shapes, options)
    learned = {
        blob.name: blob
        for layer in net.layers
        for index, blob in enumerate(layer.parameters)
        if index not in layer.statistics
    }
    values |= {name: backend.read(blob.data) for name, blob in learned.items()}

    def forward() -> None:
        for name, value in values.items():
            backend.write((learned.get(name) or net.blobs[name]).data, value)
        net.random.step = 3  # the same random numbers each time
        net.forward()

    forward()
    # What is differentiated: the losses plus the other outputs, each element weighted.
    seeds = {
        name: random.standard_normal(net.blobs[name].shape)
        for name in net.outputs
        if not net.loss_weight(name)
    }

    def objective() -> float:
        forward()
        return net.loss() + sum((net.read(name) * seed).sum() for name, seed in seeds.items())

    for name, seed in seeds.items():
        backend.write(net.blobs[name].diff, seed)
    net.backward()
    gradients = {name: backend.read(net.blobs[name].diff) for name in shapes}
    gradients |= {name: backend.read(blob.diff) for name, blob in learned.items()}

    for name, value in list(values.items()):
        if name in options["labels"]:
            continue
        for _ in range(3):
            direction = random.standard_normal(value.shape)
            values[name] = value + STEP * direction
            above = objective()
            values[name] = value - STEP * direction
            slope = (above - objective()) / (2 * STEP)
            found = (gradients[name] * direction).sum()
            assert found == pytest.approx(slope, rel=TOLERANCE, abs=TOLERANCE), name
        values[name] = value


def test_every_type_has_a_row() -> None:
    assert {row.values[0] for row in CASES} | WITHOUT == set(layer_types())
