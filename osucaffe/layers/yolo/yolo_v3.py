"""Owns the loss of YOLO's third version (Redmon & Farhadi 2018), that of eric612/MobileNet-YOLO."""

from __future__ import annotations

import numpy as np

from ..base import Shapes, register
from .grids import (
    aims_of,
    boxes_of,
    cell_of,
    check_grid,
    check_mask,
    check_truths,
    overlaps,
    read_anchors,
    sigmoid,
)
from .yolo import GridLoss


@register("Yolov3")
class Yolov3(GridLoss):
    """The loss of YOLO v3 for one of its grids: mask tells which of the anchors are its own.

    An object belongs to the anchor that fits best, and to others that fit better than iou_thresh.
    What is sent down lacks the slopes of sigmoids but where use_logic_gradient is set.
    """

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.yolov3_param, bottom[0]
        check_grid(self, shape, param.num, param.num_class)
        check_truths(self, bottom[1], shape[0])
        sizes = read_anchors(self, "yolov3_param.biases", param.biases, 1)
        self.anchors, self.mask = param.num, list(param.mask)[: param.num]
        check_mask(self, "yolov3_param.mask", self.mask, param.num, len(sizes))
        self.sizes = sizes / (np.array(shape[:1:-1]) * param.anchors_scale)
        return [()]

    def compare(self, x: np.ndarray, truths: np.ndarray, delta: np.ndarray, ssds: bool) -> float:
        param, extents = self.param.yolov3_param, x.shape[2:]
        is_share = np.ones(x.shape[1], bool)
        is_share[2:4] = False
        cells = x.astype(np.float64)
        cells[:, is_share] = sigmoid(cells[:, is_share])
        boxes = np.moveaxis(boxes_of(cells, self.sizes[self.mask]), 1, 0)
        delta[:, 4] = cells[:, 4]
        for truth in truths:
            delta[:, 4][overlaps(boxes, truth[1:]) > param.thresh] = 0
        for label, *box in truths:
            column, row = cell_of(box, extents)
            for n in self._takers(box):
                self._aim(
                    cells[n, :, row, column],
                    delta[n, :, row, column],
                    int(label),
                    box,
                    aims_of(box, extents, self.sizes[self.mask[n]]),
                )
        loss = float((delta.astype(np.float64) ** 2).sum())
        if param.use_logic_gradient:
            delta[:, is_share] *= cells[:, is_share] * (1 - cells[:, is_share])
        return loss

    def _takers(self, box: list[float]) -> list[int]:
        """Which of the grid's own anchors an object belongs to."""
        centred = np.concatenate([np.zeros_like(self.sizes), self.sizes], axis=1).T
        fit = overlaps(centred, np.array([0, 0, *box[2:]]))
        best = int(fit.argmax())
        takers = [self.mask.index(best)] if best in self.mask else []
        # The fork compares numbers of all anchors with the place of the best among its own.
        passed = takers[0] if takers else best
        limit = self.param.yolov3_param.iou_thresh
        if limit < 1:
            takers += [
                self.mask.index(n)
                for n, each in enumerate(fit)
                if n in self.mask and n != passed and each > limit
            ]
        return takers

    def _aim(
        self, cell: np.ndarray, out: np.ndarray, label: int, box: list[float], aims: np.ndarray
    ) -> None:
        """What a cell's anchor is told about its object."""
        param = self.param.yolov3_param
        out[:4] = -param.coord_scale * (2 - box[2] * box[3]) * (aims - cell[:4])
        out[4] = cell[4] - 1
        if param.use_logic_gradient:
            out[4] *= param.object_scale
        classes, sent = cell[5:], out[5:]
        is_own = np.arange(len(classes)) == label
        smooth = param.label_smooth_eps
        aim = is_own * (1 - smooth) + 0.5 * smooth
        if (sent[is_own] != 0).any():  # a second object there: the first one's class stays too
            sent[is_own] = -param.class_scale * (aim - classes)[is_own]
        elif param.use_focal_loss:
            own = classes[is_own].sum() + 1e-15
            weight = -(1 - own) * (2 * own * np.log(own) + own - 1)
            sent[:] = -param.class_scale * (is_own - classes) * 0.5 * weight
        else:
            sent[:] = -param.class_scale * (aim - classes)
