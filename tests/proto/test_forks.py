"""Fields of forks are read by name, and what nothing makes use of yet is refused, not dropped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import osucaffe
from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.layer import layer_types, messages_of
from osucaffe.net import Net
from osucaffe.proto import (
    LayerParameter,
    NetParameter,
    SolverParameter,
    forks,
    format_text,
    parse_text,
    refuse_unread,
    upgrade_net,
)
from osucaffe.proto.forks import UNREAD
from osucaffe.solvers import Solver

WITHOUT_EFFECT = {
    "AnnotatedDataParameter.anno_type",
    "AnnotatedDataParameter.label_map_file",
    "Convolution3DParameter.filter_group",
    "Convolution3DParameter.group",
    "ConvolutionParameter.conv_algorithm",
    "ConvolutionParameter.conv_algos_override",
    "DataParameter.cache",
    "DataParameter.parser_threads",
    "DataParameter.threads",
    "DetectNetGroundTruthParameter.coverage_type",
    "DetectionEvaluateParameter.resize_param",
    "DetectionOutputParameter.save_file",
    "DetectionOutputParameter.save_output_param",
    "DetectionOutputParameter.visualize_threshold",
    "EvalDetectionParameter.constriant",
    "EvalDetectionParameter.save_output_param",
    "EvalDetectionParameter.sqrt",
    "SaveOutputParameter.num_test_image",
    "GeneralContrastiveParameter.square",
    "ImageDataParameter.cache",
    "InnerDistanceParameter.bias_filler",
    "InnerDistanceParameter.bias_term",
    "MultiStageMeanfieldParameter.compatibility_mode",
    "MultiStageMeanfieldParameter.force_cpu",
    "MultiStageMeanfieldParameter.threshold",
    "ImageDataParameter.precache",
    "ImageDataParameter.threads",
    "LabelSpecificRescaleParameter.negative_upper_bound",
    "LabelSpecificRescaleParameter.positive_lower_bound",
    "NetParameter.default_conv_algos_override",
    "NetParameter.default_cudnn_math_override",
    "NetParameter.eltwise_mem_sharing",
    "NetParameter.reduce_buckets",
    "SegAccuracyParameter.metric",
    "RegionLossParameter.absolute",
    "RegionLossParameter.jitter",
    "RegionLossParameter.random",
    "RegionLossParameter.softmax",
    "SolverParameter.per_parameter_reduce",
    "SolverParameter.richness",
    "SolverParameter.show_per_class_result",
    "SolverParameter.solver_data_type",
    "SolverParameter.store_blobs_in_old_format",
    "TransformationParameter.random_seed",
    "TransformationParameter.use_gpu_transform",
    "Yolov3Parameter.accumulate",
    "Yolov3Parameter.iou_normalizer",
    "Yolov3Parameter.max_delta",
    "Yolov3Parameter.noobject_scale",
    "Yolov3Parameter.side",
}
"""What says how a fork works, keeps and prints things, not what it computes: it is ignored."""

FIELDS = [  # "message field" of all that forks have and Caffe has not
    tuple(line.split(": ", 1)[1].split()[:2])
    for line in Path(__file__).with_name("forks.txt").read_text().splitlines()
    if re.search(r" = \d+ (optional|repeated|required) ", line)
]

SAMPLES = [  # as nets of the forks have them
    "annotated_data_param { batch_sampler { use_original_image: true max_sample: 1 max_trials: 1 } "
    "batch_sampler { sampler { min_scale: 0.3 max_aspect_ratio: 2 } sample_constraint { "
    'min_jaccard_overlap: 0.1 } max_trials: 50 } label_map_file: "labelmap.prototxt" }',
    "transform_param { resize_param { prob: 1 resize_mode: WARP height: 300 width: 300 "
    "interp_mode: LINEAR interp_mode: LANCZOS4 } emit_constraint { emit_type: CENTER } "
    "distort_param { hue_prob: 0.5 } expand_param { max_expand_ratio: 4 } crop_h: 3 "
    "noise_param { saltpepper_param { fraction: 0.1 value: 0 } } }",
    "multibox_loss_param { loc_loss_type: SMOOTH_L1 conf_loss_type: SOFTMAX num_classes: 21 "
    "match_type: PER_PREDICTION code_type: CENTER_SIZE do_neg_mining: true "
    "mining_type: HARD_EXAMPLE nms_param { nms_threshold: 0.5 } }",
    "prior_box_param { min_size: 30 min_size: 60 max_size: 111 aspect_ratio: 2 variance: 0.1 }",
    "permute_param { order: 0 order: 2 order: 3 order: 1 }",
    "detection_output_param { nms_param { top_k: 400 } save_output_param { output_format: 'VOC' } "
    "code_type: CENTER_SIZE }",
    "detection_evaluate_param { name_size_file: 'sizes.txt' }",
    "norm_param { across_spatial: false scale_filler { value: 20 } channel_shared: false }",
    "roi_pooling_param { pooled_w: 7 spatial_scale: 0.0625 pad_ratio: 0.25 }",
    "smooth_l1_loss_param { sigma: 3 }",
    "proposal_param { ratio: 0.5 scale: 8 pre_nms_topn: 9 }",
    "psroi_pooling_param { spatial_scale: 0.1 output_dim: 8 group_size: 7 }",
    "box_annotator_ohem_param { roi_per_img: 128 ignore_label: -1 }",
    "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 128 weight_by_label_freqs: true "
    "class_weighting: 0.3 class_weighting: 9 }",
    "bn_param { scale_filler { value: 1 } shift_filler { value: 0 } bn_mode: INFERENCE }",
    "bn_param { slope_filler { value: 1 } bias_filler { value: 0 } frozen: true engine: CUDNN }",
    "bn_param { scale_filler { value: 1 } moving_average: true }",
    "upsample_param { scale: 2 upsample_h: 45 pad_out_h: true }",
    "dense_image_data_param { source: 'train.txt' batch_size: 4 label_divide_factor: 8 }",
    "interp_param { zoom_factor: 8 pad_beg: -1 }",
    "video_data_param { modality: FLOW new_length: 5 name_pattern: 'flow_x_%04d.jpg' }",
    "video_data_param { modality: VIDEO }",
    "video_data_param { video_type: VIDEO video_file: 'a.mp4' skip_frames: 2 }",
    "transform_param { multi_scale: true scale_ratios: 1 scale_ratios: 0.875 max_distort: 1 }",
    "detectnet_augmentation_param { crop_prob: 1 hue_rotation: 30 }",
    "detectnet_groundtruth_param { gridbox_type: GRIDBOX_MIN object_class: { src: 1 dst: 0 } }",
    "region_loss_param { biases: 1.08 biases: 1.19 softmax: 1 }",
    "reorg_param { stride: 2 }",
    "yolov3_param { mask: 0 mask: 1 iou_loss: GIOU }",
    "focal_loss_param { alpha: 0.25 gamma: 2 }",
    "normalize_param { normalize_type: 'L2' bp_norm: true }",
    "noise_param { gaussian_std: 0.1 }",
    "margin_inner_product_param { type: QUADRUPLE lambda_min: 5 }",
    "inner_product_param { normalize: true }",
    "center_loss_param { center_filler { value: 0 } }",
    "detection_group_loss_param { lambda: 0.5 }",
]


def setting(text: str, layer_type: str = "Pooling") -> NetParameter:
    """A net of an input and one layer with these settings."""
    return parse_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [1, 2, 5, 5] } } } '
        f'layer {{ name: "op" type: "{layer_type}" bottom: "x" top: "y" {text} }}',
        NetParameter,
    )


@pytest.mark.parametrize("text", SAMPLES)
def test_what_nets_of_forks_say_is_read(text: str) -> None:
    layer = parse_text(text, LayerParameter)
    assert [field.name for field, _ in layer.ListFields()] == [text.split()[0]]
    assert parse_text(format_text(layer), LayerParameter) == layer


def test_types_of_v1_nets() -> None:
    net = parse_text(
        'layers { name: "a" type: CROP bottom: "x" bottom: "y" top: "z" } layers { name: "b" '
        'type: BN bottom: "z" top: "n" bn_param { bn_mode: LEARN } } layers { name: "c" '
        "type: MULTI_STAGE_MEANFIELD multi_stage_meanfield_param { theta_alpha: 160 theta_beta: 3 "
        "theta_gamma: 3 num_iterations: 10 } }",
        NetParameter,
    )
    crop, bn, crf = upgrade_net(net).layer
    assert [crop.type, bn.type, crf.type] == ["Crop", "BN", "MultiStageMeanfield"]
    assert bn.bn_param.HasField("bn_mode")
    assert crf.multi_stage_meanfield_param.theta_alpha == 160


@pytest.mark.parametrize(
    ("layer_type", "text", "message"),
    [
        (
            "Pooling",
            "pooling_param { kernel_size: 2 temporal_stride: 2 }",
            "pooling_param.temporal_stride: is",
        ),
        (
            "Convolution",
            "convolution_param { kernel_depth: 3 }",
            "convolution_param.kernel_depth: is",
        ),
    ],
)
def test_what_is_not_read_yet_is_refused(layer_type: str, text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        Net(setting(text, layer_type), backend=Cpu())
    expected = f'layer "op" ({layer_type}), {message} not supported yet (a field of '
    assert str(error.value).startswith(expected)


def test_transformations_are_refused_by_data_layers(tmp_path: Path) -> None:
    net = parse_text(
        'layer { name: "d" type: "Data" top: "d" data_param { source: "x" batch_size: 1 '
        "backend: LMDB } transform_param { resize_param { height: 300 width: 300 } } }",
        NetParameter,
    )
    with pytest.raises(UserError, match=r'"d" \(Data\), transform_param\.resize_param: is not'):
        Net(net, backend=Cpu())


@pytest.mark.parametrize(
    "text",
    [
        "pooling_param { kernel_size: 2 ceil_mode: true }",
        "pooling_param { kernel_size: 2 temporal_stride: 1 }",
        # Another type's settings, which Caffe does not look at either.
        "pooling_param { kernel_size: 2 } convolution_param { kernel_depth: 3 }",
        'engine: "MKL2017" pooling_param { kernel_size: 2 }',
    ],
)
def test_what_says_nothing_is_taken(text: str) -> None:
    Net(setting(text), backend=Cpu())


def test_defaults_that_are_not_whole_say_nothing_either() -> None:
    refuse_unread(parse_text("larc_eta: 0.001 max_momentum: 0.99", SolverParameter), "")
    with pytest.raises(UserError, match=r"^larc_eta: is not supported yet"):
        refuse_unread(parse_text("larc_eta: 0.002", SolverParameter), "")


def test_a_row_may_name_types_that_read_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UNREAD, "PoolingParameter.temporal_stride", ("C3D", "Pooling"))
    Net(setting("pooling_param { kernel_size: 2 temporal_stride: 2 }"), backend=Cpu())
    assert not forks.is_unread("PoolingParameter", "temporal_stride", "Pooling")
    assert forks.is_unread("PoolingParameter", "temporal_stride", "SPP")


def test_the_nets_own_fields() -> None:
    net = setting("pooling_param { kernel_size: 2 }")
    net.eltwise_mem_sharing = False
    Net(net, backend=Cpu())
    net.bn_stats_batch_size = 64
    with pytest.raises(UserError, match=r'^net "", bn_stats_batch_size: is not supported yet'):
        Net(net, backend=Cpu())


@pytest.mark.parametrize(
    ("text", "field"),
    [("momentum_power: 2", "momentum_power"), ("larc: true", "larc")],
)
def test_solvers(text: str, field: str) -> None:
    param = parse_text(f'base_lr: 1 lr_policy: "fixed" {text}', SolverParameter)
    param.net_param.CopyFrom(setting("pooling_param { kernel_size: 2 }"))
    with pytest.raises(UserError, match=rf"^s\.prototxt: {field}: is not supported yet"):
        Solver(param, Cpu(), file="s.prototxt")


def test_rows_are_of_fields_that_there_are() -> None:
    for row, (fork, *types) in UNREAD.items():
        assert tuple(row.split(".")) in FIELDS
        assert fork
        assert set(types) <= set(layer_types())


def test_every_field_of_a_fork_is_read_or_refused() -> None:
    """A field that is in no table here is one that the code speaks of."""
    package = Path(osucaffe.__file__).parent
    files = [path for path in package.rglob("*.py") if path.parent.name != "proto"]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in files)))
    fields = LayerParameter.DESCRIPTOR.fields_by_name
    waiting = [
        kind.message_type
        for each in layer_types().values()
        for name in messages_of(each)
        if (kind := fields[name]).message_type is not None
    ]
    waiting += [SolverParameter.DESCRIPTOR, NetParameter.DESCRIPTOR]
    seen = {"LayerParameter", "V1LayerParameter"}  # which are of layers of all types
    while waiting:
        message = waiting.pop()
        if message.name in seen:
            continue
        seen.add(message.name)
        for field in message.fields:
            row = f"{message.name}.{field.name}"
            if row in UNREAD or row in WITHOUT_EFFECT:
                continue
            if (message.name, field.name) in FIELDS:
                assert field.name in words, f"{row} is neither read nor refused"
            if field.message_type is not None:
                waiting.append(field.message_type)
    assert {"PoolingParameter", "TransformationParameter", "SolverParameter"} <= seen
