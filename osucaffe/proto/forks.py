"""Owns which fields of forks are read so far: those that nothing reads are refused, not dropped.

The schema knows more fields of Caffe's forks than layers and solvers read. Who teaches a layer or
the solver a field deletes it here, or adds the layer's type to its row, where others lack it still.
"""

from __future__ import annotations

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
    ("NormFace", "AccuracyParameter", "min_is_better"),
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
    ("NormFace", "ParameterParameter", "blob_filler"),
    ("NormFace", "ScaleParameter", "max_value min_value", "GlobalLSEMargin"),
    ("NormFace", "SoftmaxParameter", "normalize_type"),
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

_NETS = {"NetParameter", "LayerParameter", "V1LayerParameter"}  # which answer for themselves


def is_unread(message: str, field: str, reader: str) -> bool:
    """Whether a field of a message is one of a fork that layers of this type do not read yet."""
    row = UNREAD.get(f"{message}.{field}")
    return row is not None and reader not in row[1:]


def refuse_unread(message: Message, place: str, reader: str = "") -> None:
    """Raise UserError "place.field: …" if a field of a fork is set that would be dropped.

    reader: the type of the layer that the message belongs to. A field that has its default value
    says nothing, so it may be set.
    """
    for field, value in message.ListFields():
        values = value if hasattr(value, "extend") else [value]
        name = f"{message.DESCRIPTOR.name}.{field.name}"
        row = UNREAD.get(name)
        if row and reader not in row[1:] and not _is_default(field, value):
            raise UserError(
                f"{place}{field.name}: is not supported yet (a field of {row[0]}, not of Caffe's): "
                "take it out if you can do without it"
            )
        if field.message_type is not None and field.message_type.name not in _NETS:
            for part in values:
                refuse_unread(part, f"{place}{field.name}.", reader)


def _is_default(field: FieldDescriptor, value: object) -> bool:
    return field.has_default_value and bool(value == field.default_value)
