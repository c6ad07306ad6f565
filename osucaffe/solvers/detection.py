"""The score of detections: average precision, from the rows of DetectionEvaluate layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ..errors import UserError
from ..net import Net
from ..proto import caffe_pb2

_SAME_RECALL = 1e-6


def _eleven_points(precision: np.ndarray, recall: np.ndarray) -> float:
    """The mean of the best precision from each recall 0, 0.1 ... 1 on (VOC 2007)."""
    points = np.arange(11) / 10
    return float(np.mean([precision[recall >= point].max(initial=0) for point in points]))


def _integral(precision: np.ndarray, recall: np.ndarray) -> float:
    """The sum of the precision over all steps of the recall."""
    steps = np.diff(recall, prepend=0)
    return float((precision * np.where(steps > _SAME_RECALL, steps, 0)).sum())


def _max_integral(precision: np.ndarray, recall: np.ndarray) -> float:
    """The same, of the best precision from each recall on (VOC 2010 and later)."""
    return _integral(np.maximum.accumulate(precision[::-1])[::-1], recall)


VERSIONS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "11point": _eleven_points,
    "MaxIntegral": _max_integral,
    "Integral": _integral,
}
"""The solver's ap_version: functions of precision and recall after each detection, best first."""


def check_evaluation(param: caffe_pb2.SolverParameter, test_nets: Iterable[Net]) -> None:
    """UserError for an eval_type or ap_version that is unknown or does not fit the test nets."""
    if param.ap_version not in VERSIONS:
        raise UserError(f'ap_version "{param.ap_version}": give one of {", ".join(VERSIONS)}')
    if param.eval_type not in ("classification", "detection"):
        raise UserError(f'eval_type "{param.eval_type}": give classification or detection')
    if param.eval_type == "detection":
        for net in test_nets:
            check_detection(net, "eval_type detection")


def detection_outputs(net: Net) -> list[str]:
    """The outputs of a net that DetectionEvaluate layers make."""
    made = [
        blob.name for node in net.nodes if node.layer.type == "DetectionEvaluate"
        for blob in node.top
    ]  # fmt: skip
    return [name for name in net.outputs if name in made]


def check_detection(net: Net, where: str) -> None:
    """UserError if a net has no detections to score."""
    if not detection_outputs(net):
        raise UserError(
            f"{where}: the test net has no DetectionEvaluate layer as an output: detections are "
            "scored by one, after a DetectionOutput layer, with the truth as its second bottom"
        )


def average_precisions(rows: np.ndarray, version: str) -> dict[int, float]:
    """The average precision of each label with ground truth, from rows (R, 5) of all batches.

    version: a key of VERSIONS. Rows: see the primitive `evaluate_boxes`.
    """
    counts, detections = rows[rows[:, 0] == -1], rows[rows[:, 0] != -1]
    result = {}
    for label in np.unique(counts[:, 1]):
        known = counts[counts[:, 1] == label, 2].sum()
        if label < 0 or not known:
            continue
        rows_of_label = detections[detections[:, 1] == label]
        rows_of_label = rows_of_label[np.argsort(-rows_of_label[:, 2], kind="stable")]
        true, false = np.cumsum(rows_of_label[:, 3]), np.cumsum(rows_of_label[:, 4])
        precision = true / np.maximum(true + false, 1)
        result[int(label)] = VERSIONS[version](precision, true / known)
    return result


def mean_average_precision(rows: np.ndarray, version: str) -> float:
    """Their mean; 0 without ground truth."""
    values = list(average_precisions(rows, version).values())
    return float(np.mean(values)) if values else 0.0
