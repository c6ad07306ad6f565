"""The fields that may change nothing without a message, each with the reason."""

from __future__ import annotations

_ROWS = (
    (
        "how to compute, not what: here the backend chooses",
        "engine ConvolutionParameter.force_nd_im2col ConvolutionParameter.conv_algorithm "
        "ConvolutionParameter.conv_algos_override Convolution3DParameter.filter_group "
        "ConcatParameter.per_fla_fuse EltwiseParameter.stable_prod_grad "
        "MultiStageMeanfieldParameter.force_cpu "
        "TransformationParameter.use_gpu_transform",
    ),
    (
        "how records are read ahead and kept: here train's own options say it",
        "DataParameter.prefetch DataParameter.cache DataParameter.threads "
        "DataParameter.parser_threads ImageDataParameter.cache ImageDataParameter.precache "
        "ImageDataParameter.threads PatchDataParameter.prefetch cache_images",
    ),
    ("what the log shows: the solver has debug_info", "RecurrentParameter.debug_info"),
    ("the database itself tells which it is", "DataParameter.backend"),
    ("it has one value", "AnnotatedDataParameter.anno_type "
     "DetectNetGroundTruthParameter.coverage_type MultiStageMeanfieldParameter.compatibility_mode"),
    ("the bottom has the grid's shape", "RegionLossParameter.side Yolov3Parameter.side "
     "YoloDetectionOutputParameter.side"),
    ("the fork does not use it either, and many nets have it",
     "AnnotatedDataParameter.label_map_file MultiStageMeanfieldParameter.threshold "
     "YoloDetectionOutputParameter.label_map_file"),
    ("of files that are not written: output_directory and visualize tell so",
     "DetectionOutputParameter.save_file DetectionOutputParameter.visualize_threshold "
     "SaveOutputParameter.output_name_prefix SaveOutputParameter.output_format "
     "SaveOutputParameter.label_map_file SaveOutputParameter.name_size_file "
     "SaveOutputParameter.num_test_image SaveOutputParameter.resize_param"),
    ("where files are written (layers/core/test_output.py, forks/segmentation/test_mat_write.py)",
     "HDF5OutputParameter.file_name MatWriteParameter.prefix MatWriteParameter.source "
     "MatWriteParameter.strip MatWriteParameter.period"),
    ("all ranks share a layer's process anyhow", "PythonParameter.share_in_parallel"),
)  # fmt: skip

EXCEPTIONS = {field: reason for reason, fields in _ROWS for field in fields.split()}
"""By field, "Message.field", or "field" of all messages: the reason."""


def is_exception(name: str) -> bool:
    """Whether a field, "Message.field", may change nothing."""
    return name in EXCEPTIONS or name.partition(".")[2] in EXCEPTIONS
