"""What comes out of YOLO: EvalDetection, which judges it, and the DetectionOutputs."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from ...layers.base import Arrays, Blobs, Layer, Program, Shapes, register
from ..rows import Rows, put_rows
from . import grids

MIN_SCORE = 0.005


@register("EvalDetection")
class EvalDetection(Layer):
    """What YOLO v2 found, judged: objects by class, then class, score, true, false of each box.

    That of intel/caffe: boxes are thinned whatever their classes, those that score less than 0.005
    are left out, and one that overlaps too little with objects of its class is neither of the two.
    """

    host_is_pure = True
    bottoms = (2, 3)
    no_gradient = (0, 1, 2)
    non_differentiable_tops = (0,)

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.eval_detection_param, bottom[0]
        anchors, field = param.num_object, "eval_detection_param"
        grids.check_grid(self, bottom, anchors, param.num_class)
        grids.check_truths(self, bottom[1], shape[0])
        if shape[2:] != (param.side, param.side):
            self.fail(f"{field}.side", f"is {param.side}, but bottom[0] has {shape}")
        sizes = grids.read_anchors(self, f"{field}.biases", param.biases, anchors)
        self.sizes = sizes[:anchors] / param.side
        return [(shape[0], param.num_class + param.side**2 * anchors * 4)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.host([blob.data for blob in bottom[:2]], [top[0].data], function=self._judge)

    def _judge(self, reads: Arrays, writes: Arrays) -> None:
        param = self.param.eval_detection_param
        classes, (x, labels), outputs = param.num_class, reads, writes[0]
        outputs.fill(0)
        for cells, ground_truths, row in zip(
            x, grids.ground_truths_of(labels, len(x)), outputs, strict=True
        ):
            ground_truth_classes = ground_truths[:, 0].astype(int)
            row[:classes] = np.bincount(
                ground_truth_classes[
                    (ground_truth_classes >= 0) & (ground_truth_classes < classes)
                ],
                minlength=classes,
            )
            if param.nms < 0:
                continue
            table = row[classes:].reshape(-1, 4)
            kinds, scores, boxes = self._predict(cells)
            used = np.zeros(len(ground_truths), bool)
            for line, kind, score, box in zip(table, kinds, scores, boxes, strict=False):
                line[:2] = kind, score
                candidates = np.flatnonzero(ground_truth_classes == kind)
                if not len(candidates):
                    line[3] = 1
                    continue
                near = grids.iou(ground_truths[candidates, 1:].T, box)
                best = candidates[near.argmax()]
                if near.max() >= param.threshold:
                    line[2:] = not used[best], used[best]
                    used[best] = True

    def _predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Classes, scores and boxes that an image's cells tell, by class, the best first."""
        param = self.param.eval_detection_param
        cells = grids.to_cells(x, param.num_object, [4])
        power = grids.softmax(cells[:, 5:])
        # As the fork goes through them: rows, columns, anchors.
        boxes = grids.boxes_of(cells, self.sizes).transpose(2, 3, 0, 1).reshape(-1, 4)
        kinds, best, objects = (
            array.transpose(1, 2, 0).reshape(-1)
            for array in (power.argmax(axis=1), power.max(axis=1), cells[:, 4])
        )
        scores = {param.OBJ: objects, param.PROB: best}.get(param.score_type, objects * best)
        order = np.argsort(-scores, kind="stable")
        selected = order[grids.nms(boxes[order], param.nms)]
        selected = selected[scores[selected] >= MIN_SCORE]
        selected = selected[np.argsort(kinds[selected], kind="stable")]
        return kinds[selected], scores[selected], boxes[selected]


class Detections(Rows):
    """The boxes that YOLO reports, of all its grids: rows of 7 numbers, as DetectionOutput's.

    Boxes are thinned whatever their classes. By image, where the fork (eric612/MobileNet-YOLO)
    takes those of a batch together. An image's row of -1 says that nothing was found in any.
    """

    host_is_pure = True
    sizes: list[np.ndarray]
    """Of each bottom's anchors, in parts of the image."""

    def read(self, name: str, bottom: Shapes) -> Any:
        """The settings of this name, once they and the bottoms are checked."""
        self.setting: Any = getattr(self.param, name)
        self.no_gradient = tuple(range(len(bottom)))
        if not 0 <= self.setting.nms_threshold <= 1:
            self.fail(f"{name}.nms_threshold", "must be between 0 and 1")
        for i in range(len(bottom)):
            grids.check_grid(self, bottom, self.setting.num_box, self.setting.num_classes, i)
        return self.setting

    def tops_of(self, bottom: Shapes) -> Shapes:
        """As many rows as there could be."""
        positions = sum(self.setting.num_box * shape[2] * shape[3] for shape in bottom)
        return [(1, 1, bottom[0][0] * positions, 7)]

    @abstractmethod
    def cells(self, x: np.ndarray) -> np.ndarray:
        """A grid (anchors, numbers, H, W), with probabilities for objects and classes."""

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        rows = list(self.open_rows(top[0]))
        program.host([blob.data for blob in bottom], rows, function=self._report)

    def _report(self, reads: Arrays, writes: Arrays) -> None:
        outputs = [
            np.pad(self._detect(images), ((0, 0), (1, 0)), constant_values=item)
            for item, images in enumerate(zip(*reads, strict=True))
        ]
        rows = np.concatenate(outputs)
        if not len(rows):
            rows = np.full((len(outputs), 7), -1.0)
            rows[:, 0] = np.arange(len(outputs))
        put_rows(rows, writes)

    def _detect(self, maps: tuple[np.ndarray, ...]) -> np.ndarray:
        """Class from 1, score and corners of what the grids of an image tell, the best first."""
        param = self.setting
        parts = []
        for x, sizes in zip(maps, self.sizes, strict=True):
            cells = self.cells(x)
            # The best class alone: others there have the same box, so they would be thinned out.
            scores = cells[:, 4] * cells[:, 5:].max(axis=1)
            kinds = cells[:, 5:].argmax(axis=1)
            # As the fork goes through them: rows, columns, anchors.
            rows, columns, n = np.nonzero(scores.transpose(1, 2, 0) > param.confidence_threshold)
            at = n, rows, columns
            boxes = grids.boxes_of(cells, sizes)[n, :, rows, columns]
            parts.append(np.column_stack([kinds[at] + 1, scores[at], boxes]))
        rows = np.concatenate(parts)
        rows = rows[np.argsort(-rows[:, 1], kind="stable")]
        rows = rows[grids.nms(rows[:, 2:], param.nms_threshold)]
        rows[:, 2:4] -= rows[:, 4:] / 2
        rows[:, 4:] += rows[:, 2:4]
        return rows


@register("YoloDetectionOutput")
class YoloDetectionOutput(Detections):
    """The boxes that YOLO v2 reports: classes exclude one another, anchors are in cells.

    side is not read, as in the fork.
    """

    bottoms = (1, 2)

    def setup(self, bottom: Shapes) -> Shapes:
        name = "yolo_detection_output_param"
        param = self.read(name, bottom)
        if param.coords != 4:
            self.fail(f"{name}.coords", "must be 4")
        sizes = grids.read_anchors(self, f"{name}.biases", param.biases, param.num_box)
        self.sizes = [sizes[: param.num_box] / shape[:1:-1] for shape in bottom]
        return self.tops_of(bottom)

    def cells(self, x: np.ndarray) -> np.ndarray:
        cells = grids.to_cells(x, self.setting.num_box, [4])
        cells[:, 5:] = grids.softmax(cells[:, 5:])
        return cells


@register("Yolov3DetectionOutput")
class Yolov3DetectionOutput(Detections):
    """The boxes that YOLO v3 reports: each class by itself, a mask of anchors for each grid."""

    bottoms = (1, None)

    def setup(self, bottom: Shapes) -> Shapes:
        name = "yolov3_detection_output_param"
        param = self.read(name, bottom)
        count = param.num_box
        if param.mask_group_num != len(bottom) or len(param.anchors_scale) < len(bottom):
            text = f"and anchors_scale must be of {len(bottom)} bottoms"
            self.fail(f"{name}.mask_group_num", text)
        sizes = grids.read_anchors(self, f"{name}.biases", param.biases, 1)
        masks = np.array(param.mask[: len(param.mask) // len(bottom) * len(bottom)], int)
        self.sizes = []
        for i, (shape, mask) in enumerate(zip(bottom, masks.reshape(len(bottom), -1), strict=True)):
            grids.check_mask(self, f"{name}.mask", mask.tolist(), count, len(sizes))
            image = np.array(shape[:1:-1]) * param.anchors_scale[i]
            self.sizes.append(sizes[mask[:count]] / image)
        return self.tops_of(bottom)

    def cells(self, x: np.ndarray) -> np.ndarray:
        return grids.to_cells(x, self.setting.num_box, slice(4, None))
