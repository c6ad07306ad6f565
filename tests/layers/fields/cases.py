"""The nets in which fields are changed: those of other tests, and what these lack.

A row is a layer over inputs, in a phase. `FOLDER` stands for the folder of `files.make_files`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.forks.cascade.test_field_boxes import NORMALIZED, regions
from tests.forks.cascade.test_proposal_losses import ground_truth
from tests.forks.cascade.test_region_samples import candidates, objects
from tests.forks.detectnet.test_transformation import NONE, SMALL, lists
from tests.forks.yolo.test_yolo import as_rows_of_5, as_rows_of_8
from tests.forks.yolo.test_yolo import objects as cells_with_objects

from ..nets import inputs
from ..test_gradients import CASES, case, drawn
from ..test_values import VALUES

# ruff: noqa: E501 (a table reads best with a row to a line)


@dataclass
class Row:
    """A layer, `op`, over inputs of these values, in a phase."""

    type: str
    text: str
    values: Mapping[str, np.ndarray]
    phase: str


random = np.random.default_rng(19)


def row(type_: str, settings: str, values: Mapping[str, Any] | None = None, *, tops: int = 1,
        phase: str = "TRAIN", names: Sequence[str] = ()) -> Row:  # fmt: skip
    """values: arrays, or shapes for numbers to be drawn."""
    arrays = {
        name: random.standard_normal(each) if isinstance(each, tuple) else np.asarray(each)
        for name, each in (values or {}).items()
    }
    bottoms = "".join(f'bottom: "{name}" ' for name in arrays)
    top = "".join(f'top: "{name}" ' for name in names or [f"y{i}" for i in range(tops)])
    text = inputs({name: np.shape(each) for name, each in arrays.items()})
    text += f'layer {{ name: "op" type: "{type_}" {bottoms}{top}{settings} }}'
    return Row(type_, text, arrays, phase)


def _of_gradients(cases: list) -> list[Row]:
    rows = []
    for type_, shapes, text, options in (each.values for each in cases):
        values = drawn(np.random.default_rng(7), shapes, options)
        rows.append(Row(type_, inputs(shapes) + text, values, options["phase"]))
    return rows


def _of_values() -> list[Row]:
    return [
        row(type_, options["settings"], dict(zip("abcde", values, strict=False)),
            tops=options["tops"], phase=options.get("phase", "TEST"))
        for type_, values, _, options in (each.values for each in VALUES)
    ]  # fmt: skip


X = (2, 4, 5, 6)
LABELS = random.integers(4, size=6).astype(float)
SCORES = {"x": (6, 4), "l": LABELS}
MAPS = {"x": (2, 7, 4, 5), "t": ground_truth(2)}
GROUPS = {"c": (4, 3, 4, 5), "b": 0.3 * random.standard_normal((4, 4, 4, 5)), "t": ground_truth(4)}
TRUTHS = objects(8)
REGIONS = {"c": 0.3 * random.standard_normal((8, 12)), "r": regions(8)}
MATCHES = np.zeros((8, 6))
MATCHES[:6, 0], MATCHES[:6, 1:5] = [1, 2, 1, 2, 2, 1], REGIONS["r"][:6, 1:] + 3
MATCHES[:, 5] = [0.5, 0.6, 0.99, 0.7, 0.8, 0.9, 0.4, 0.3]
MEANS = "mean_value: 3 scale: 0.5 mirror: true"
OF_FILES = 'root_folder: "FOLDER" batch_size: 2'
PICTURES = 'image_data_param { source: "FOLDER/list.txt" root_folder: "FOLDER/" batch_size: 3 }'
OBJECTS = 'source: "FOLDER/objects/list.txt" root_folder: "FOLDER/objects" batch_size: 1'
PAIRS = 'root_folder: "FOLDER/pairs" batch_size: 3'
BOXES = (
    'data_param { source: "FOLDER/boxes" batch_size: 4 } annotated_data_param { batch_sampler { max_sample: 1 '
    "sampler { min_scale: 0.3 max_scale: 0.9 min_aspect_ratio: 0.5 max_aspect_ratio: 2 } max_trials: 50 } } "
)
RESIZED = "transform_param { resize_param { height: 20 width: 24 } }"
PRE_FIXED = "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 7 }"
PRIORS = np.array(
    [
        [0.1, 0.1, 0.5, 0.5, 0.4, 0.4, 0.9, 0.9, 0.05, 0.5, 0.5, 1, 0.12, 0.1, 0.5, 0.52],
        [0.1, 0.1, 0.2, 0.2] * 4,
    ]
)
BEYOND = np.array(
    [
        [-0.1, 0.1, 0.5, 0.5, 0.4, 0.4, 1.1, 0.9, 0.05, 0.5, 0.5, 1, 0.12, 0.1, 0.5, 0.52],
        [0.1, 0.1, 0.2, 0.2] * 4,
    ]
)
CORNERS = np.array([[0.1, 0.12, 0.45, 0.5], [0.45, 0.4, 0.95, 0.9]])
TRUE_BOXES = np.array(
    [[0, 1, 0, *CORNERS[0], 0], [0, 2, 0, *CORNERS[1], 1], [1, 1, 0, *CORNERS[1], 0]]
)[None, None]
DETECTED = {
    "l": 0.3 * random.standard_normal((2, 16)),
    "c": random.random((2, 12)),
    "p": PRIORS[None],
}
MULTIBOX = {
    "l": 3 * random.standard_normal((2, 16)),
    "c": random.random((2, 12)),
    "p": BEYOND[None],
    "t": TRUE_BOXES,
}
MULTIBOX_ALONE = "multibox_loss_param { num_classes: 3 neg_overlap: 0.3 %s }"
IMAGE = {
    "i": random.uniform(0, 255, (1, 3, 24, 32)),
    "o": lists((-4, 3, 20, 30, 1), (15, 10, 14, 12, 2)),
}
OFTEN = NONE.replace("_prob: 0", "_prob: 1")
YOLO = {"x": (2, 24, 3, 4), "l": as_rows_of_5([cells_with_objects(5), cells_with_objects(4)])}
GRIDS = {
    "a": 3 * random.standard_normal((2, 14, 2, 2)),
    "b": 3 * random.standard_normal((2, 14, 4, 4)),
}
SEQUENCE = {"x": (4, 2, 3), "l": np.array([[0.0, 0], [1, 1], [1, 0], [1, 1]])}
SMALLER = {"x": (2, 3, 4, 5), "z": (2, 3, 2, 3)}

ROWS = [
    row("Accuracy", "", {"x": (30, 4, 4), "l": random.integers(4, size=(30, 4)).astype(float)}),
    row("AnnotatedData", BOXES + RESIZED, tops=2),
    row("AnnotatedData", BOXES.replace("batch_sampler { max", "batch_sampler { sample_constraint { min_jaccard_overlap: 0.2 } max") + RESIZED, tops=2),
    row("AnnotatedData", BOXES + "transform_param { resize_param { height: 20 width: 24 } emit_constraint { emit_type: MIN_OVERLAP emit_overlap: 0.95 } "
        "mean_value: 100 expand_param { prob: 0.7 max_expand_ratio: 2 } distort_param { brightness_prob: 1 brightness_delta: 30 "
        "contrast_prob: 1 contrast_lower: 0.5 contrast_upper: 1.5 hue_prob: 1 hue_delta: 18 saturation_prob: 1 "
        "saturation_lower: 0.5 saturation_upper: 1.5 random_order_prob: 0.5 } }", tops=2),
    row("AnnotatedData", BOXES.replace("batch_size: 4", "batch_size: 1") + "transform_param { resize_param { height: 20 width: 24 resize_mode: FIT_LARGE_SIZE_AND_PAD } }", tops=2),
    row("AnnotatedData", BOXES + "transform_param { crop_h: 10 crop_w: 12 }", tops=2),
    row("BboxAccuracy", NORMALIZED, REGIONS | {"m": MATCHES}, tops=2),
    row("BoxGroupOutput", f"{NORMALIZED} box_group_output_param {{ fg_thr: 0.3 iou_thr: 0.4 max_nms_num: 60 max_post_nms_num: 9 min_size: 10 "
        "box_group_param { field_w: [20, 30] field_h: [16, 24] stride: 8 } }", {"p": random.random((4, 2, 5, 6)), "c": (4, 4, 5, 6)}, tops=2),
    row("BoxOutput", f"{NORMALIZED} box_output_param {{ fg_thr: 0.2 iou_thr: 0.3 field_w: [20, 40] field_h: [16, 30] downsample_rate: [8, 16] "
        "max_nms_num: 20 max_post_nms_num: 6 min_size: 9 }", {"a": (2, 7, 5, 6), "b": (2, 7, 3, 3)}, tops=2),
    row("BoxAnnotatorOHEM", "box_annotator_ohem_param { roi_per_img: 2 ignore_label: -1 }",
        {"r": [[0, 0, 0, 9, 9], [1, 0, 0, 9, 9], [0, 1, 1, 8, 8], [0, 2, 2, 7, 7]], "l": [1, 0.5, 3, 2], "a": np.arange(5.0, 9), "w": np.ones((4, 2))}, tops=2),
    row("CenterLoss", "center_loss_param { num_output: 4 center_filler { type: 'gaussian' std: 1 } }", {"x": (6, 3), "l": LABELS}),
    row("Data", f'data_param {{ source: "FOLDER/lmdb" batch_size: 2 }} transform_param {{ {MEANS} }}', tops=2),
    row("Data", 'data_param { source: "FOLDER/lmdb" batch_size: 2 } transform_param { crop_size: 7 }', tops=2),
    *(row("Data", f'data_param {{ source: "FOLDER/{name}" batch_size: 2 }}', tops=2) for name in ("colour", "gray")),
    *(row("AnnotatedData", f'data_param {{ source: "FOLDER/{name}_boxes" batch_size: 2 }}', tops=2) for name in ("colour", "gray")),
    *(row("PatchData", f'patch_data_param {{ source: "FOLDER/{name}" batch_size: 3 patch_size: 3 }}', tops=2) for name in ("colour", "gray")),
    row("DecodeBBox", f"{NORMALIZED} decode_bbox_param {{ gt_iou_thr: 0.75 }}", {"c": REGIONS["c"][:, :8], "r": REGIONS["r"], "m": MATCHES}),
    row("DenseImageData", f'dense_image_data_param {{ source: "FOLDER/pairs/list.txt" {PAIRS} }}', tops=2),
    row("DenseImageData", f'dense_image_data_param {{ source: "FOLDER/pairs/list.txt" {PAIRS} new_height: 12 new_width: 10 }}', tops=2),
    row("DenseImageData", f'dense_image_data_param {{ source: "FOLDER/pairs/list.txt" {PAIRS} crop_height: 3 crop_width: 4 }}', tops=2),
    row("DetectNetTransformation", f"detectnet_groundtruth_param {{ {SMALL} scale_cvg: 0.3 object_class {{ src: 1 dst: 0 }} object_class {{ src: 2 dst: 1 }} }} detectnet_augmentation_param {{ {NONE} }}", IMAGE, tops=2),
    row("DetectNetTransformation", f"detectnet_groundtruth_param {{ {SMALL} gridbox_type: GRIDBOX_MIN scale_cvg: 0.3 }} detectnet_augmentation_param {{ {NONE} }}", IMAGE, tops=2),
    row("DetectNetTransformation", f"detectnet_groundtruth_param {{ {SMALL} }} detectnet_augmentation_param {{ {OFTEN} }}", IMAGE, tops=2),
    row("DetectNetTransformation", f"detectnet_groundtruth_param {{ {SMALL} }} detectnet_augmentation_param {{ {NONE.replace('scale_prob: 0', 'scale_prob: 1')} }}", IMAGE, tops=2),
    row("DetectionAccuracy", f"{NORMALIZED} detection_accuracy_param {{ cls_num: 3 field_w: 30 field_h: 20 downsample_rate: 8 bg_threshold: 0.4 }}", MAPS, tops=2),
    row("DetectionGroupAccuracy", f"{NORMALIZED} detection_group_accuracy_param {{ cls_num: 3 field_w: [30, 44] field_h: [20, 36] stride: 8 bg_threshold: 0.4 }}", GROUPS, tops=2),
    row("DetectionGroupLoss", f"{NORMALIZED} loss_weight: 1 detection_group_loss_param {{ cls_num: 3 field_w: [30, 44] field_h: [20, 36] stride: 8 bg_threshold: 0.4 bg_multiple: 1 }}", GROUPS),
    row("DetectionGroupLoss", f"{NORMALIZED} loss_weight: 1 detection_group_loss_param {{ cls_num: 3 field_w: [30, 44] field_h: [20, 36] stride: 8 pos_neg_weighted: true }}", GROUPS),
    row("DetectionGroupLoss", "loss_weight: 1 detection_group_loss_param { cls_num: 3 field_w: [30, 44] field_h: [20, 36] stride: 8 field_whr: 1.5 field_xyr: 4 }", GROUPS | {"b": (4, 4, 4, 5)}),
    row("DetectionLoss", f"{NORMALIZED} loss_weight: 1 detection_loss_param {{ cls_num: 3 field_w: 30 field_h: 20 downsample_rate: 8 bg_threshold: 0.4 bg_multiple: 1 }}", MAPS),
    row("DetectionLoss", f"{NORMALIZED} loss_weight: 1 detection_loss_param {{ cls_num: 3 field_w: 30 field_h: 20 downsample_rate: 8 pos_neg_weighted: true }}", MAPS),
    row("DetectionData", f"detection_data_param {{ {OBJECTS} crop_width: 64 crop_height: 48 stride: [8, 16] field_w: [32, 16] field_h: [24, 16] output_gt_boxes: true multiscale_prob: 0.5 min_scale: 20 max_scale: 60 }} transform_param {{ mirror: true }}", tops=4),
    row("DetectionData", f"detection_data_param {{ {OBJECTS} short_size: 64 long_size: 96 crop_short_size: 32 crop_long_size: 64 stride: 8 field_w: 32 field_h: 24 shuffle: 'random' }} transform_param {{ mirror: true mean_value: 9 }}", tops=2),
    *(row("DetectionData", f"detection_data_param {{ {OBJECTS} stride: 8 field_w: 32 field_h: 24 {text} }}", tops=2)
      for text in ("crop_width: 64 crop_height: 48 multiscale_prob: 1 low_scale_ratio: 0.5 high_scale_ratio: 2 min_whaspect: 0.5 max_whaspect: 2",
                   "resize_width: 96 resize_height: 80", "short_size: 64 long_size: 96 shuffle: 'random_mix_aspect' mix_group_size: 2")),
    row("DetectionEvaluate", "detection_evaluate_param { num_classes: 3 overlap_threshold: 0.5 name_size_file: 'FOLDER/sizes.txt' }",
        {"d": [[0, 1, 1, 20, 20, 1, 0.6], [0, 2, 2, 21, 21, 1, 0.9], [0, 50, 50, 60, 60, 1, 0.5], [0, 30, 5, 33, 8, 2, 0.8]],
         "t": [[0, 1, 1, 20, 20, 1, 0, 0], [0, 50, 50, 60, 60, 1, 0, 1], [0, 40, 5, 43, 8, 2, 0, 0], [-1] * 8], "s": [[80, 60]]}),
    row("DetectionEvaluate", "detection_evaluate_param { num_classes: 3 background_label_id: 0 overlap_threshold: 0.5 }",
        {"d": np.array([[0, 1, 0.9, *CORNERS[0]], [0, 2, 0.8, *(CORNERS[1] + 0.05)], [1, 1, 0.7, *CORNERS[1]]])[None, None], "t": TRUE_BOXES}, phase="TEST"),
    *(row("DetectionOutput", f"detection_output_param {{ num_classes: 3 confidence_threshold: 0.2 {text} }}", DETECTED, phase="TEST")
      for text in ("", "nms_param { nms_threshold: 0.3 top_k: 3 } keep_top_k: 5", "nms_param { nms_threshold: 0.95 }", "code_type: CENTER_SIZE")),
    row("DummyData", "dummy_data_param { shape { dim: 2 dim: 3 } }"),
    row("DummyData", "dummy_data_param { num: 2 channels: 3 height: 4 width: 5 }"),
    row("EvalData", f"eval_data_param {{ {OBJECTS} short_size: 64 long_size: 96 }}", tops=3, phase="TEST"),
    row("EvalData", f"eval_data_param {{ {OBJECTS} }} transform_param {{ mean_value: 3 scale: 0.5 }}", tops=3),
    row("EvalDetection", "eval_detection_param { side: 3 num_class: 2 num_object: 2 nms: 0.5 threshold: 0.5 biases: [1, 1, 1.5, 1] }",
        {"x": (1, 14, 3, 3), "l": as_rows_of_8([[[0, 0.5, 0.5, 0.3, 0.3], [1, 0.9, 0.9, 0.1, 0.1]]])}),
    row("FrcnnOutput", f"{NORMALIZED} frcnn_output_param {{ conf_thr: 0.3 iou_thr: 0.25 max_det_num: 3 }}",
        {"p": random.random((8, 3)), **REGIONS, "s": [[70, 60]]}),
    row("GlobalLSEMargin", "scale_param { filler { value: 9 } }", {"x": random.uniform(-0.1, 0.9, (8, 5)), "l": random.integers(5, size=8)}, tops=2),
    row("HDF5Data", 'hdf5_data_param { source: "FOLDER/files.txt" batch_size: 3 }', tops=2, names=("data", "label")),
    row("MatWrite", 'mat_write_param { prefix: "FOLDER/blob_" }', {"x": (2, 3)}, tops=0),
    row("HDF5Output", 'hdf5_output_param { file_name: "FOLDER/out.h5" }', {"x": (2, 3), "z": (2,)}, tops=0),
    row("HardMining", "hard_mining_param { num_roi_per_image: 2 num_image: 2 }", {"x": random.random(8), "r": regions(8)}),
    row("ImageData", f"{PICTURES} transform_param {{ {MEANS} }}", tops=2),
    row("ImageFloatData", f"{PICTURES.replace('list', 'floats')} image_float_data_param {{ label_dim: 3 }}", tops=2),
    row("ImageFloatData", f"{PICTURES.replace('list', 'floats')} image_float_data_param {{ label_dim: 3 with_heatmap: true heatmap_dir: 'FOLDER/heat/' }}", tops=2),
    row("ImageGtData", "image_gt_data_param { " + OBJECTS.replace("objects", "easy") + " crop_width: 64 crop_height: 48 downsample_rate: 8 field_w: 40 field_h: 32 do_multiple_scale: true min_scale: 20 max_scale: 60 output_gt_boxes: true }", tops=3),
    row("ImageGtData", "image_gt_data_param { " + OBJECTS.replace("objects", "easy") + " crop_width: 64 crop_height: 48 resize_width: 90 resize_height: 80 downsample_rate: 8 field_w: 40 field_h: 32 } transform_param { mirror: true mean_value: 4 }", tops=2),
    row("ImageLabelmapData", f'image_data_param {{ source: "FOLDER/pairs/edges.txt" {PAIRS} }} transform_param {{ {MEANS} }}', tops=2),
    row("ImageSegData", f'image_data_param {{ source: "FOLDER/pairs/list.txt" {PAIRS} label_type: PIXEL ignore_label: 255 }}', tops=2),
    row("ImageSegData", f'image_data_param {{ source: "FOLDER/pairs/list.txt" {PAIRS} label_type: PIXEL ignore_label: 255 }} transform_param {{ crop_size: 5 }}', tops=2),
    row("InfogainLoss", 'infogain_loss_param { source: "FOLDER/infogain.binaryproto" } loss_weight: 1', SCORES),
    row("Input", "input_param { shape { dim: 2 dim: 3 } }"),
    row("LabelSpecificAdd", "label_specific_add_param { bias_base: -0.5 bias_gamma: 1 bias_power: 1 bias_min: -9 bias_max: 9 }", SCORES, tops=2),
    row("LabelSpecificRescale", "label_specific_rescale_param { positive_weight_base: 8 gamma: 1 power: 1 }", SCORES, tops=2),
    row("MarginInnerProduct", "margin_inner_product_param { num_output: 4 base: 5 gamma: 0.5 power: 2 weight_filler { type: 'gaussian' std: 1 } }", SCORES, tops=2),
    row("MemoryData", "memory_data_param { batch_size: 2 channels: 3 height: 4 width: 5 }", tops=2),
    *(row("MultiBoxLoss", MULTIBOX_ALONE % text + " loss_weight: 1", MULTIBOX)
      for text in ("", "mining_type: HARD_EXAMPLE sample_size: 3", "mining_type: HARD_EXAMPLE sample_size: 3 nms_param { nms_threshold: 0.1 }",
                   "code_type: CORNER_SIZE", "match_type: BIPARTITE", "mining_type: NONE", "overlap_threshold: 0.2 mining_type: NONE")),
    row("PatchData", 'patch_data_param { source: "FOLDER/high" batch_size: 3 patch_size: 3 } transform_param { mean_value: 3 }', tops=2),
    *(row("PriorBox", f"prior_box_param {{ {text} }}", {"x": (1, 4, 2, 3), "d": (1, 3, 40, 60)})
      for text in ("min_size: 12 max_size: 20 aspect_ratio: 2 flip: false", "width: 9 height: 5")),
    row("PriorBoxClustered", "prior_box_param { width: [9, 70] height: [5, 12] }", {"x": (1, 4, 2, 3), "d": (1, 3, 40, 60)}),
    row("Proposal", "proposal_param { ratio: [0.5, 1, 2] scale: [1, 2, 3] min_size: 4 pre_nms_topn: 50 post_nms_topn: 30 nms_thresh: 0.3 }",
        {"s": random.random((1, 18, 4, 5)), "d": 0.3 * random.standard_normal((1, 36, 4, 5)), "i": [[60, 70, 1.5]]}, tops=2),
    *(row("ProposalTarget", f"{NORMALIZED} proposal_target_param {{ cls_num: 3 num_img_per_batch: 2 bg_thr_lw: 0.1 {text} }}",
          {"r": candidates(TRUTHS, 12), "g": TRUTHS}, tops=7) for text in ("batch_size: 16", "batch_size: -1", "batch_size: -1 iou_weighted: true", "batch_size: 16 bbox_mean: [0, 0, 0, 0] bbox_std: [1, 1, 1, 1]")),
    row("Python", "python_param { module: 'tests.pycaffe.layers_for_tests' layer: 'Times' param_str: '3' }", {"x": X}),
    row("RegionLoss", "loss_weight: 1 region_loss_param { side: 3 num_class: 3 num: 2 biases: [1, 2, 2, 1] }", {"x": (2, 16, 3, 4), "l": YOLO["l"]}),
    row("ScaleRoute", "scale_route_param { low_scale: 10 high_scale: 40 }", {"r": regions(9), "x": (9, 3)}, tops=2),
    row("SegAccuracy", "", {"x": (2, 4, 3, 3), "l": random.integers(4, size=(2, 1, 3, 3))}, tops=1, phase="TEST"),
    row("SegData", f'seg_data_param {{ source: "FOLDER/pairs/list.txt" root_dir: "FOLDER/pairs/" }} transform_param {{ {MEANS} }}', tops=2),
    row("Threshold", "", {"x": X}),
    row("VideoData", 'video_data_param { source: "FOLDER/videos.txt" batch_size: 2 new_length: 2 }', tops=2),
    row("VideoData", 'video_data_param { source: "FOLDER/videos.txt" batch_size: 6 modality: RGB name_pattern: "img_%04d.jpg" } transform_param { crop_size: 2 mirror: true multi_scale: true scale_ratios: [1, 0.75, 0.5] fix_crop: true }', tops=2),
    row("WindowData", 'window_data_param { source: "FOLDER/windows.txt" root_folder: "FOLDER/" batch_size: 8 } transform_param { crop_size: 8 mirror: true }', tops=2),
    *(row("Yolov3", f"loss_weight: 1 yolov3_param {{ num_class: 3 num: 3 anchors_scale: 16 biases: [10, 12, 30, 20, 40, 64, 28, 22] mask: [2, 0, 3] {text} }}", YOLO)
      for text in ("", "use_focal_loss: true", "use_logic_gradient: true")),
    row("YoloDetectionOutput", "yolo_detection_output_param { num_classes: 2 num_box: 2 confidence_threshold: 0.25 nms_threshold: 0.3 biases: [1, 1, 2, 1] }", GRIDS),
    row("Yolov3DetectionOutput", "yolov3_detection_output_param { num_classes: 2 num_box: 2 confidence_threshold: 0.25 nms_threshold: 0.3 biases: [16, 16, 32, 16, 20, 9, 8, 30] mask: [1, 0, 3, 2] anchors_scale: [32, 16] mask_group_num: 2 }", GRIDS),
    # Of types that have rows elsewhere, what some fields need to act.
    *(row("ProposalTarget", "proposal_target_param { cls_num: 3 num_img_per_batch: 2 img_width: 90 img_height: 80 batch_size: 64 pickup_discard: false bbox_mean: [0.1, 0, 0, 0] bbox_std: [1, 1, 2, 1] }",
          {"r": candidates(objects(columns), 12), "g": objects(columns)}, tops=7) for columns in (7, 8)),
    *(row("SegData", f'seg_data_param {{ source: "FOLDER/pairs/list.txt" root_dir: "FOLDER/pairs/" }} transform_param {{ {text} }}', tops=2)
      for text in ("upper_size: 1", "upper_height: 3 upper_width: 4")),
    row("EvalData", f"eval_data_param {{ {OBJECTS} resize_width: 64 resize_height: 96 }}", tops=2),
    row("ImageSegData", f'image_data_param {{ source: "FOLDER/pairs/list.txt" {PAIRS} label_type: PIXEL ignore_label: 255 }} transform_param {{ crop_size: 9 }}', tops=2),
    row("ImageGtData", "image_gt_data_param { " + OBJECTS.replace("objects", "easy").replace("size: 1", "size: 3") + " crop_width: 64 crop_height: 48 downsample_rate: 8 field_w: 40 field_h: 32 do_multiple_scale: true min_scale: 20 max_scale: 60 min_whaspect: 0.5 max_whaspect: 2 }", tops=2),
    row("GeneralContrastiveLoss", "loss_weight: 1 general_contrastive_loss_param { positive_first: true positive_upper_bound: 0.3 add_intra_mae: true max_negative_margin: 0.01 }", {"x": random.random((6, 4)), "l": LABELS}),
    row("PriorBox", "prior_box_param { min_size: 30 }", {"x": (1, 4, 2, 3), "d": (1, 3, 40, 60)}),
    row("Convolution3D", "convolution_param { num_output: 3 kernel_size: 2 kernel_depth: 2 }", {"x": (2, 2, 4, 5, 4)}),
    row("Pooling3D", "pooling_param { kernel_size: 2 kernel_depth: 2 }", {"x": (2, 2, 4, 5, 4)}),
    row("MultiStageMeanfield", "multi_stage_meanfield_param { theta_alpha: 3 theta_beta: 0.7 theta_gamma: 2 num_iterations: 2 bilateral_filter_weight: 2 }",
        {"x": (1, 3, 4, 5), "z": (1, 3, 4, 5), "i": (1, 3, 4, 5)}),
    row("WeightEuclideanLoss", "loss_weight: 1 weight_euclidean_loss_param { main_weight: 1 contour_weight: 1 normalized: true }", {"x": (3, 136), "t": random.random((3, 136))}),
    row("Noise", "noise_param { gaussian_std: 0.5 }", {"x": X}),
    row("Concat", "concat_param { axis: 1 }", {"x": (2, 3, 3), "z": (2, 3, 3)}),
    row("Crop", "crop_param { axis: 1 }", {"x": (4, 4, 4, 4), "z": (2, 2, 2, 2)}),
    row("Crop", "crop_param { axis: 2 }", SMALLER),
    row("InfogainLoss", f"loss_weight: 1 {PRE_FIXED}", SCORES | {"h": (4, 4)}),
    row("SoftmaxWithLossOHEM", f"loss_weight: 1 {PRE_FIXED}", SCORES),
    row("MultiBoxLoss", MULTIBOX_ALONE % "" + f" loss_weight: 1 {PRE_FIXED}", MULTIBOX),
    row("InfogainLoss", "loss_weight: 1", {"x": (4, 4, 4), "l": random.integers(4, size=(4, 4)), "h": (4, 4)}),
    *(row(each, "loss_weight: 1", {"x": (4, 4, 4), "l": random.integers(4, size=(4, 4))}) for each in ("SoftmaxWithLoss", "SoftmaxWithLossOHEM", "FocalLoss")),
    *(row(each, "recurrent_param { num_output: 3 }", SEQUENCE) for each in ("LSTM", "RNN")),
    row("Reshape", "reshape_param { shape { dim: 4 dim: 5 dim: 6 } axis: 1 num_axes: 3 }", {"x": X}),
    row("Upsample", "upsample_param { scale: 2 }", {"x": (2, 3, 2, 3), "m": random.integers(12, size=(2, 3, 2, 3))}),
    row("Pooling", "pooling_param { kernel_h: 5 kernel_w: 6 }", {"x": X}),
]  # fmt: skip

ALL: list[Row] = [*_of_gradients(CASES), *_of_values(), *ROWS]
__all__ = ["ALL", "Row", "case"]
