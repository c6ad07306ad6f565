"""Owns which fields of forks are read so far: those that nothing reads are refused, not dropped.

The schema knows more fields of Caffe's forks than layers and solvers read. Who teaches a layer or
the solver a field deletes its row here, or adds the layer's type to it, where others lack it still.
"""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ..errors import UserError

UNREAD: dict[str, tuple[str, ...]] = {
    "AccuracyParameter.min_is_better": ("NormFace",),
    "AnnotatedDataParameter.single_class": ("MobileNet-YOLO",),
    "AnnotatedDataParameter.train_diffcult": ("MobileNet-YOLO",),
    "AnnotatedDataParameter.yolo_data_jitter": ("MobileNet-YOLO",),
    "AnnotatedDataParameter.yolo_data_type": ("MobileNet-YOLO",),
    "BNParameter.decay": ("caffe-windows",),
    "BNParameter.moving_average": ("caffe-windows",),
    "BNParameter.var_eps": ("caffe-windows",),
    "CenterLossParameter.distance_type": ("NormFace",),
    "ChannelScaleParameter.do_backward_feature": ("NormFace",),
    "ChannelScaleParameter.do_backward_scale": ("NormFace",),
    "ChannelScaleParameter.do_forward": ("NormFace",),
    "ChannelScaleParameter.global_scale": ("NormFace",),
    "ChannelScaleParameter.init_global_scale": ("NormFace",),
    "ChannelScaleParameter.max_global_scale": ("NormFace",),
    "ChannelScaleParameter.min_global_scale": ("NormFace",),
    "ConvolutionParameter.kernel_depth": ("C3D", "Convolution3D"),
    "ConvolutionParameter.temporal_pad": ("C3D", "Convolution3D"),
    "ConvolutionParameter.temporal_stride": ("C3D", "Convolution3D"),
    "DetectNetAugmentationParameter.distort_param": ("NVIDIA Caffe",),
    "DetectNetAugmentationParameter.emit_constraint": ("NVIDIA Caffe",),
    "DetectNetAugmentationParameter.expand_param": ("NVIDIA Caffe",),
    "DetectNetAugmentationParameter.noise_param": ("NVIDIA Caffe",),
    "DetectNetAugmentationParameter.resize_param": ("NVIDIA Caffe",),
    "FeatureNormalizeParameter.fix_gradient": ("NormFace",),
    "FeatureNormalizeParameter.rescale": ("NormFace",),
    "ImageDataParameter.ignore_label": ("PSPNet", "ImageSegData"),
    "ImageDataParameter.label_type": ("PSPNet", "ImageSegData"),
    "ImageDataParameter.normalize": ("DSS", "ImageLabelmapData"),
    "LabelSpecificAddParameter.transform_test": ("NormFace",),
    "LabelSpecificRescaleParameter.do_backward": ("NormFace",),
    "LossParameter.class_weighting": ("SegNet", "SoftmaxWithLoss"),
    "LossParameter.label_smoothing": ("NVIDIA Caffe",),
    "LossParameter.weight_by_label_freqs": ("SegNet", "SoftmaxWithLoss"),
    "MultiStageMeanfieldParameter.forced_bilateral_filter_weight": ("CRF-RNN",),
    "MultiStageMeanfieldParameter.forced_spatial_filter_weight": ("CRF-RNN",),
    "NetParameter.bn_stats_batch_size": ("Intel Caffe",),
    "ParameterParameter.blob_filler": ("NormFace",),
    "PoolingParameter.kernel_depth": ("C3D", "Pooling3D"),
    "PoolingParameter.temporal_stride": ("C3D", "Pooling3D"),
    "RegionLossParameter.class_map": ("caffe-yolo9000",),
    "RegionLossParameter.softmax_tree": ("caffe-yolo9000",),
    "ResizeParameter.height_scale": ("SSD",),
    "ResizeParameter.width_scale": ("SSD",),
    "ScaleParameter.max_value": ("NormFace", "GlobalLSEMargin"),
    "ScaleParameter.min_value": ("NormFace", "GlobalLSEMargin"),
    "SoftmaxParameter.normalize_type": ("NormFace",),
    "SolverParameter.larc": ("NVIDIA Caffe",),
    "SolverParameter.larc_eta": ("NVIDIA Caffe",),
    "SolverParameter.larc_policy": ("NVIDIA Caffe",),
    "SolverParameter.larc_turbo": ("NVIDIA Caffe",),
    "SolverParameter.local_gw_ratio": ("Intel Caffe",),
    "SolverParameter.local_lr_auto": ("Intel Caffe",),
    "SolverParameter.max_momentum": ("NVIDIA Caffe",),
    "SolverParameter.max_nonfinite_test_loss": ("ctensmeyer/caffe",),
    "SolverParameter.max_periods_without_improvement": ("ctensmeyer/caffe",),
    "SolverParameter.max_steps_without_improvement": ("ctensmeyer/caffe",),
    "SolverParameter.max_weight_decay": ("NVIDIA Caffe",),
    "SolverParameter.min_iters_per_period": ("ctensmeyer/caffe",),
    "SolverParameter.momentum_policy": ("NVIDIA Caffe",),
    "SolverParameter.momentum_power": ("NVIDIA Caffe",),
    "SolverParameter.monitor_test": ("ctensmeyer/caffe",),
    "SolverParameter.monitor_test_id": ("ctensmeyer/caffe",),
    "SolverParameter.test_and_snapshot_last_epochs": ("NVIDIA Caffe",),
    "SolverParameter.weight_decay_policy": ("NVIDIA Caffe",),
    "SolverParameter.weight_decay_power": ("NVIDIA Caffe",),
    "TransformationParameter.allow_upscale": ("NVIDIA Caffe",),
    "TransformationParameter.crop_h": ("SSD", "AnnotatedData"),
    "TransformationParameter.crop_height": ("PSPNet", "ImageSegData"),
    "TransformationParameter.crop_w": ("SSD", "AnnotatedData"),
    "TransformationParameter.crop_width": ("PSPNet", "ImageSegData"),
    "TransformationParameter.distort_param": ("SSD", "AnnotatedData"),
    "TransformationParameter.emit_constraint": ("SSD", "AnnotatedData"),
    "TransformationParameter.expand_param": ("SSD", "AnnotatedData"),
    "TransformationParameter.fix_crop": ("TSN", "VideoData"),
    "TransformationParameter.horizontal_stretch_lower": ("NVIDIA Caffe",),
    "TransformationParameter.horizontal_stretch_upper": ("NVIDIA Caffe",),
    "TransformationParameter.img_rand_resize_lower": ("NVIDIA Caffe",),
    "TransformationParameter.img_rand_resize_upper": ("NVIDIA Caffe",),
    "TransformationParameter.interpolation_algo_down": ("NVIDIA Caffe",),
    "TransformationParameter.interpolation_algo_up": ("NVIDIA Caffe",),
    "TransformationParameter.is_flow": ("TSN", "VideoData"),
    "TransformationParameter.max_distort": ("TSN", "VideoData"),
    "TransformationParameter.more_fix_crop": ("TSN", "VideoData"),
    "TransformationParameter.multi_scale": ("TSN", "VideoData"),
    "TransformationParameter.noise_param": ("SSD",),
    "TransformationParameter.pad": ("Intel Caffe",),
    "TransformationParameter.rand_resize_ratio_lower": ("NVIDIA Caffe",),
    "TransformationParameter.rand_resize_ratio_upper": ("NVIDIA Caffe",),
    "TransformationParameter.random_aspect_ratio_param": ("Intel Caffe",),
    "TransformationParameter.random_resize_param": ("Intel Caffe",),
    "TransformationParameter.resize_param": ("SSD", "AnnotatedData"),
    "TransformationParameter.scale_factors": ("PSPNet", "ImageSegData"),
    "TransformationParameter.scale_ratios": ("TSN", "VideoData"),
    "TransformationParameter.vertical_stretch_lower": ("NVIDIA Caffe",),
    "TransformationParameter.vertical_stretch_upper": ("NVIDIA Caffe",),
    "VideoDataParameter.crop_size": ("C3D",),
    "VideoDataParameter.device_id": ("SSD",),
    "VideoDataParameter.encoded": ("TSN",),
    "VideoDataParameter.grayscale": ("TSN",),
    "VideoDataParameter.is_color": ("C3D",),
    "VideoDataParameter.length_first": ("TSN",),
    "VideoDataParameter.max_sampling_rate": ("C3D",),
    "VideoDataParameter.mean_file": ("C3D",),
    "VideoDataParameter.mirror": ("C3D",),
    "VideoDataParameter.num_of_labels": ("C3D",),
    "VideoDataParameter.rand_step": ("TSN",),
    "VideoDataParameter.sampling_rate": ("C3D",),
    "VideoDataParameter.scale": ("C3D",),
    "VideoDataParameter.show_data": ("C3D",),
    "VideoDataParameter.skip_frames": ("SSD",),
    "VideoDataParameter.step": ("TSN",),
    "VideoDataParameter.use_image": ("C3D",),
    "VideoDataParameter.use_multiple_label": ("C3D",),
    "VideoDataParameter.use_sampling_rate_jitter": ("C3D",),
    "VideoDataParameter.use_temporal_jitter": ("C3D",),
    "VideoDataParameter.video_file": ("SSD",),
    "VideoDataParameter.video_type": ("SSD",),
    "Yolov3DetectionOutputParameter.gaussian_box": ("MobileNet-YOLO",),
    "Yolov3Parameter.iou_loss": ("MobileNet-YOLO",),
}
"""Fields, and values (after "="), each with the fork that has it and the layer types that read it
all the same."""

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
        said = ""
        if name not in UNREAD and field.enum_type is not None:
            names = field.enum_type.values_by_number
            said = next((s for v in values if name + (s := f"={names[v].name}") in UNREAD), "")
        row = UNREAD.get(name + said)
        if row and reader not in row[1:] and not _is_default(field, value):
            what = f"{said[1:]} is" if said else "is"
            raise UserError(
                f"{place}{field.name}: {what} not supported yet (a field of {row[0]}, not of "
                "Caffe's): take it out if you can do without it"
            )
        if field.message_type is not None and field.message_type.name not in _NETS:
            for part in values:
                refuse_unread(part, f"{place}{field.name}.", reader)


def _is_default(field: FieldDescriptor, value: object) -> bool:
    return field.has_default_value and bool(value == field.default_value)
