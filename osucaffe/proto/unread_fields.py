"""The fields that are not read: no setting is dropped silently.

The schema knows more fields of Caffe's forks than layers and solvers read: these are refused. What
Caffe or the fork itself drops silently, too, is told by a warning. Who teaches a layer or the
solver a field deletes it here, or takes the layer's type out of its row (`_ROWS`: adds it, where
others lack it still).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ..errors import UserError

_ROWS: tuple[tuple[str, ...], ...] = (
    ("C3D", "ConvolutionParameter", "kernel_depth temporal_pad temporal_stride", "Convolution3D"),
    ("C3D", "PoolingParameter", "kernel_depth temporal_stride", "Pooling3D"),
    (
        "C3D",
        "VideoDataParameter",
        "crop_size is_color max_sampling_rate mean_file mirror num_of_labels sampling_rate "
        "scale show_data use_image use_multiple_label use_sampling_rate_jitter "
        "use_temporal_jitter",
    ),
    (
        "CRF-RNN",
        "MultiStageMeanfieldParameter",
        "forced_bilateral_filter_weight forced_spatial_filter_weight",
    ),
    ("DSS", "ImageDataParameter", "normalize", "ImageLabelmapData"),
    ("Intel Caffe", "NetParameter", "bn_stats_batch_size"),
    ("Intel Caffe", "TransformationParameter", "pad random_aspect_ratio_param random_resize_param"),
    (
        "MobileNet-YOLO",
        "AnnotatedDataParameter",
        "single_class train_diffcult yolo_data_jitter yolo_data_type",
    ),
    ("MobileNet-YOLO", "Yolov3DetectionOutputParameter", "gaussian_box"),
    ("MobileNet-YOLO", "Yolov3Parameter", "iou_loss"),
    (
        "NVIDIA Caffe",
        "DetectNetAugmentationParameter",
        "distort_param emit_constraint expand_param noise_param resize_param",
    ),
    ("NVIDIA Caffe", "LossParameter", "label_smoothing"),
    (
        "NVIDIA Caffe",
        "SolverParameter",
        "larc_turbo max_momentum max_weight_decay momentum_policy "
        "momentum_power test_and_snapshot_last_epochs weight_decay_policy weight_decay_power",
    ),
    (
        "NVIDIA Caffe",
        "TransformationParameter",
        "allow_upscale horizontal_stretch_lower horizontal_stretch_upper img_rand_resize_lower "
        "img_rand_resize_upper interpolation_algo_down interpolation_algo_up "
        "rand_resize_ratio_lower rand_resize_ratio_upper vertical_stretch_lower "
        "vertical_stretch_upper",
    ),
    ("NormFace", "CenterLossParameter", "distance_type"),
    (
        "NormFace",
        "ChannelScaleParameter",
        "do_backward_feature do_backward_scale do_forward global_scale init_global_scale "
        "max_global_scale min_global_scale",
    ),
    ("NormFace", "FeatureNormalizeParameter", "fix_gradient rescale"),
    ("NormFace", "LabelSpecificAddParameter", "transform_test"),
    ("NormFace", "LabelSpecificRescaleParameter", "do_backward"),
    ("NormFace", "SoftmaxParameter", "normalize_type"),
    ("osucaffe", "LossParameter", "class_balance", "SigmoidCrossEntropyLoss"),
    ("osucaffe", "TransformationParameter", "augmentation_param", "Data", "ImageData"),
    ("PSPNet", "ImageDataParameter", "ignore_label label_type", "ImageSegData"),
    ("PSPNet", "TransformationParameter", "crop_height crop_width scale_factors", "ImageSegData"),
    ("SSD", "ResizeParameter", "height_scale width_scale"),
    ("SSD", "TransformationParameter", "noise_param"),
    (
        "SSD",
        "TransformationParameter",
        "crop_h crop_w distort_param emit_constraint expand_param resize_param",
        "AnnotatedData",
    ),
    ("SSD", "VideoDataParameter", "device_id skip_frames video_file video_type"),
    ("SegNet", "LossParameter", "class_weighting weight_by_label_freqs", "SoftmaxWithLoss"),
    (
        "TSN",
        "TransformationParameter",
        "fix_crop is_flow max_distort more_fix_crop multi_scale",
        "VideoData",
    ),
    ("TSN", "TransformationParameter", "scale_ratios", "SegData", "VideoData"),
    (
        "TSN",
        "TransformationParameter",
        "stride upper_height upper_size upper_width",
        "SegData",
    ),
    ("TSN", "VideoDataParameter", "encoded grayscale length_first rand_step step"),
    ("caffe-windows", "BNParameter", "decay moving_average var_eps"),
    ("caffe-yolo9000", "RegionLossParameter", "class_map softmax_tree"),
    (
        "ctensmeyer/caffe",
        "SolverParameter",
        "max_nonfinite_test_loss max_periods_without_improvement max_steps_without_improvement "
        "min_iters_per_period monitor_test monitor_test_id",
    ),
)
"""A fork, one of its messages, the fields in it that are not read, and the types of layers that do
read them."""

UNREAD = {
    f"{message}.{field}": (fork, *readers)
    for fork, message, fields, *readers in _ROWS
    for field in fields.split()
}
"""Fields, each with its fork and those types."""

_FIXED = "give transform_param this field"
_GRAY = "only records of a Data layer that are encoded are decoded by it"
_READS_IMAGES = (
    "DenseImageData DetectNetTransformation DetectionData EvalData ImageData ImageFloatData "
    "ImageGtData ImageLabelmapData ImageSegData MemoryData SegData VideoData WindowData"
)
_CUBES = "C3D has kernel_depth, kernel_size and the like"
_FIELD_LOSSES = "DetectionAccuracy DetectionGroupAccuracy DetectionGroupLoss DetectionLoss"
_IDLE_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("AnnotatedData", "DataParameter", "shuffle", "train --shuffle draws an order"),
    (
        "",
        "BatchNormParameter",
        "filler",
        "the Scale layer that follows has its own (Intel Caffe computes both as one; add one where "
        "none follows)",
    ),
    (
        "BoxGroupOutput BoxOutput DecodeBBox " + _FIELD_LOSSES,
        "BBoxRegParameter",
        "cls_aware",
        "a map has the codes of one box",
    ),
    ("Convolution3D", "Convolution3DParameter", "group", "all channels meet"),
    (
        "Convolution3D",
        "ConvolutionParameter",
        "axis dilation group kernel_h kernel_w pad_h pad_w stride_h stride_w",
        _CUBES,
    ),
    (
        "Im2col",
        "ConvolutionParameter",
        "bias_filler bias_term group num_output weight_filler",
        "no convolution follows",
    ),
    ("", "DataParameter", "crop_size mean_file mirror scale", _FIXED),
    ("", "DataParameter", "force_encoded_color", "give transform_param force_color"),
    ("", "DetectionDataParameter", "scale", _FIXED),
    ("", "DetectionDataParameter", "resize_param", "give resize_width and resize_height"),
    ("", "DetectionEvaluateParameter", "resize_param", "name_size_file has the images' sizes"),
    ("", "EvalDataParameter", "scale", _FIXED),
    ("", "EvalDetectionParameter", "constriant sqrt", "boxes are those of YOLO v2"),
    ("", "EvalDetectionParameter", "save_output_param", "no files are written"),
    ("", "FocalLossParameter", "axis", "give softmax_param this field"),
    ("", "FocalLossParameter", "beta", "it is of NormFace's types LINEAR and ONEADDP"),
    ("", "GeneralContrastiveParameter", "square", "the fork does not use it either"),
    (
        "GlobalLSEMargin",
        "ScaleParameter",
        "axis bias_filler bias_term num_axes",
        "there is one scale and no bias",
    ),
    ("", "ImageDataParameter", "crop_size mean_file mirror scale", _FIXED),
    ("", "ImageGtDataParameter", "mirror", _FIXED),
    ("", "InnerDistanceParameter", "bias_filler bias_term", "distances have no bias"),
    (
        "",
        "LabelSpecificRescaleParameter",
        "negative_upper_bound positive_lower_bound",
        "the fork does not use it either",
    ),
    ("L1Loss MultiBoxLoss SmoothL1LossOHEM", "LossParameter", "ignore_label", "all counts"),
    (
        _FIELD_LOSSES,
        "LossParameter",
        "normalization normalize pre_fixed_normalizer",
        "the mean over what counts is taken",
    ),
    ("PriorBoxClustered", "PriorBoxParameter", "flip", "all sizes are listed"),
    ("", "ProposalTargetParameter", "bbox_mean bbox_std", "give bbox_reg_param this field"),
    (
        "Pooling3D",
        "PoolingParameter",
        "ceil_mode global_pooling kernel_h kernel_w pad_h pad_w round_mode stride_h stride_w",
        _CUBES,
    ),
    (
        "",
        "RegionLossParameter",
        "absolute jitter random softmax",
        "of darknet's data and training, which the fork does not use here either",
    ),
    ("", "NetParameter", "debug_info", "give the solver this field"),
    ("", "NetParameter", "multinode", "options of train say how ranks share the work"),
    ("MultiBoxLoss", "NonMaximumSuppressionParameter", "eta", "mining keeps its threshold"),
    ("", "SegAccuracyParameter", "metric", "the top has all three"),
    (_READS_IMAGES, "TransformationParameter", "force_color force_gray", _GRAY),
    ("DetectionData EvalData ImageGtData", "TransformationParameter", "crop_size",
     "the layer's own settings say how images are cut"),
    ("EvalData", "TransformationParameter", "mirror", "images stay as they are"),
    ("ImageGtData", "TransformationParameter", "scale", "give image_gt_data_param this field"),
    ("", "TransformationParameter", "random_seed", "the solver's random_seed says what is drawn"),
    ("", "WindowDataParameter", "crop_size mean_file mirror scale", _FIXED),
    (
        "",
        "Yolov3Parameter",
        "accumulate iou_normalizer max_delta noobject_scale",
        "it is of iou_loss, which is not supported",
    ),
)  # fmt: skip
"""Types of layers that do not use some fields of a message (none: all that have the message), these
fields, and why not, or what to give instead."""

IDLE: dict[str, list[tuple[list[str], str]]] = {}
"""By field: types that do not use it ([]: all), and why."""
for _types, _message, _fields, _why in _IDLE_ROWS:
    for _field in _fields.split():
        IDLE.setdefault(f"{_message}.{_field}", []).append((_types.split(), _why))

_log = logging.getLogger("osucaffe")
_NETS = {"NetParameter", "LayerParameter", "V1LayerParameter"}  # which answer for themselves


def is_unread(message: str, field: str, reader: str) -> bool:
    """Whether a field of a message is one of a fork that layers of this type do not read yet."""
    row = UNREAD.get(f"{message}.{field}")
    return row is not None and reader not in row[1:]


def why_idle(message: str, field: str, reader: str) -> str:
    """Why layers of this type do not use a field of a message; "" if they do."""
    rows = IDLE.get(f"{message}.{field}", ())
    return next((why for types, why in rows if not types or reader in types), "")


def refuse_unread(message: Message, place: str, reader: str = "") -> None:
    """Raise UserError, and warn, as `idle_fields` says."""
    for text in idle_fields(message, place, reader):
        _log.warning("%s", text)


def idle_fields(message: Message, place: str, reader: str = "") -> Iterator[str]:
    """Raise UserError "place.field: …" if a field of a fork is set that would be dropped; yield
    what is to be told of those that its own fork, or Caffe, drops as well.

    reader: the type of the layer that the message belongs to. A field that has its default value
    says nothing, so it may be set.
    """
    for field, value in message.ListFields():
        values = value if hasattr(value, "extend") else [value]
        name = f"{message.DESCRIPTOR.name}.{field.name}"
        row = UNREAD.get(name)
        if _is_default(field, value):
            continue
        if row and reader not in row[1:]:
            raise UserError(
                f"{place}{field.name}: is not supported yet (a field of {row[0]}, not of Caffe's): "
                "take it out if you can do without it"
            )
        if why := why_idle(message.DESCRIPTOR.name, field.name, reader):
            yield f"{place}{field.name}: has no effect: {why}"
            continue
        if field.message_type is not None and field.message_type.name not in _NETS:
            for part in values:
                yield from idle_fields(part, f"{place}{field.name}.", reader)


def _is_default(field: FieldDescriptor, value: object) -> bool:
    return field.has_default_value and bool(value == field.default_value)
