"""Reorg and the losses of YOLO's second and third version (Redmon & Farhadi 2017, 2018).

Reorg and RegionLoss are those of intel/caffe and eric612/MobileNet-YOLO, and the labels tell which
RegionLoss is meant; Yolov3 is the latter's.
"""

from __future__ import annotations

import numpy as np

from ...layers.base import Arrays, Blobs, Flags, Program, Shapes, register
from ...layers.core.losses import Loss
from ...layers.core.shape import Reordered
from . import grids


@register("Reorg")
class Reorg(Reordered):
    """Blocks of pixels as channels, in darknet's order; reverse: channels as blocks of pixels.

    The former takes the memory of C x H x W for that of C / s^2 x H s x W s, cuts this into blocks
    of s x s, and takes what comes for C s^2 x H / s x W / s: weights of darknet want it so.
    """

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.reorg_param, bottom[0]
        self.check_axes(shape)
        items, channels, height, width = shape
        s = param.stride
        if s < 1 or channels % (s * s):
            self.fail("reorg_param.stride", f"is {s}: its square must divide {channels} channels")
        if not param.reverse and (height % s or width % s):
            self.fail("reorg_param.stride", f"is {s}, which must divide {height} x {width}")
        if param.reverse:
            self.order((items, s, s, channels // (s * s), height, width), (0, 3, 4, 1, 5, 2))
            return [(items, channels // (s * s), height * s, width * s)]
        self.order((items, channels // (s * s), height, s, width, s), (0, 3, 5, 1, 2, 4))
        return [(items, channels * s * s, height // s, width // s)]


class GridLoss(Loss):
    """A loss of a grid of boxes that the host computes, as the forks do, with what it sends down.

    The deltas of an image are not derivatives of the loss: it is the sum of their squares.
    """

    anchors: int
    no_gradient = (1,)

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.delta = self.tensor(bottom[0].shape)
        program.host(
            [blob.data for blob in bottom], [top[0].data, self.delta], function=self._compare
        )

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        shape = (bottom[0].data.count,)
        program.broadcast(
            [self.delta.view(shape), top[0].diff.view((1,))], [bottom[0].diff.view(shape)],
            formula="y = share * a * b", constants={"share": 1 / bottom[0].shape[0]},
        )  # fmt: skip

    def _compare(self, reads: Arrays, writes: Arrays) -> None:
        x, labels = reads
        items, _, *extents = x.shape
        shape = (items, self.anchors, -1, *extents)
        cells, deltas = x.reshape(shape), writes[1].reshape(shape)
        deltas.fill(0)
        losses = [
            self.compare(*image, grids.is_ssds(labels.shape))
            for image in zip(cells, grids.ground_truths_of(labels, items), deltas, strict=True)
        ]
        writes[0][...] = self.total(sum(losses), items, grids.is_ssds(labels.shape))

    def compare(
        self, x: np.ndarray, ground_truths: np.ndarray, delta: np.ndarray, ssds: bool
    ) -> float:
        """The loss of an image: x, delta (A, 5 + classes, H, W); truths as `truths_of` has them."""
        raise NotImplementedError

    def total(self, loss: float, items: int, ssds: bool) -> float:
        """The loss of a batch by the sum over its images."""
        return loss / items

    @staticmethod
    def spare(
        delta: np.ndarray, boxes: np.ndarray, ground_truths: np.ndarray, threshold: float
    ) -> None:
        """No delta where there is no object, but a box (A, 4, H, W) that overlaps one by much."""
        for ground_truth in ground_truths:
            iou = grids.iou(np.moveaxis(boxes, 1, 0), ground_truth[1:])
            delta[:, 4][iou > threshold] = 0


@register("RegionLoss")
class RegionLoss(GridLoss):
    """The loss of YOLO v2: distances of boxes, whether there are objects, and which.

    Labels of 8 numbers: Intel Caffe's, with bounded distances and a focal weight of objects. Of 5:
    that of MobileNet-YOLO, with rescore, which is the mean of the batch.
    """

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.region_loss_param, bottom[0]
        if param.coords != 4:
            self.fail("region_loss_param.coords", f"is {param.coords}, but must be 4")
        grids.check_grid(self, bottom, param.num, param.num_class)
        grids.check_truths(self, bottom[1], shape[0])
        if grids.is_ssds(bottom[1]) and shape[2:] != (param.side, param.side):
            self.fail("region_loss_param.side", f"is {param.side}, but bottom[0] has {shape}")
        self.anchors = param.num
        sizes = grids.read_anchors(self, "region_loss_param.biases", param.biases, param.num)
        self.sizes = sizes[: param.num] / np.array(shape[:1:-1])
        return [()]

    def total(self, loss: float, items: int, ssds: bool) -> float:
        return loss if ssds else loss / items

    def compare(
        self, x: np.ndarray, ground_truths: np.ndarray, delta: np.ndarray, ssds: bool
    ) -> float:
        param, (height, width) = self.param.region_loss_param, x.shape[2:]
        cells = grids.to_cells(x, self.anchors, [4])
        cells[:, 5:] = grids.softmax(cells[:, 5:])
        boxes = grids.boxes_of(cells, self.sizes)
        chance = cells[:, 4]
        delta[:, 4] = param.noobject_scale * chance * chance * (1 - chance)
        self.spare(delta, boxes, ground_truths, param.thresh)
        for label, *box in ground_truths:
            i, j = grids.cell_of(box, (height, width))
            sizes = self.sizes if param.bias_match else boxes[:, 2:, j, i]
            n = int(grids.fits(sizes, box).argmax())
            cell, out, p = cells[n, :, j, i], delta[n, :, j, i], chance[n, j, i]
            gap = grids.aims_of(box, (height, width), self.sizes[n]) - cell[:4]
            scale = param.coord_scale
            if ssds:
                gap = gap.clip(-1, 1)
                sent = 2 * (1 - p) ** 3
            else:
                scale *= 1 if param.rescore else 2 - box[2] * box[3]
                overlap = grids.iou(boxes[n, :, j, i], np.array(box))
                sent = overlap - p if param.rescore else 1 - p
            gap[:2] *= cell[:2] * (1 - cell[:2])
            out[:4] = -scale * gap
            out[4] = -param.object_scale * sent * p * (1 - p)
            out[5:] = -param.class_scale * ((np.arange(len(cell) - 5) == int(label)) - cell[5:])
        return float((delta.astype(np.float64) ** 2).sum())


@register("Yolov3")
class Yolov3(GridLoss):
    """The loss of YOLO v3 for one of its grids: mask tells which of the anchors are its own.

    An object belongs to the anchor that fits best, and to others that fit better than iou_thresh.
    What is sent down lacks the slopes of sigmoids but where use_logic_gradient is set.
    """

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.yolov3_param, bottom[0]
        grids.check_grid(self, bottom, param.num, param.num_class)
        grids.check_truths(self, bottom[1], shape[0])
        sizes = grids.read_anchors(self, "yolov3_param.biases", param.biases, 1)
        self.anchors, self.mask = param.num, list(param.mask)[: param.num]
        grids.check_mask(self, "yolov3_param.mask", self.mask, param.num, len(sizes))
        self.sizes = sizes / (np.array(shape[:1:-1]) * param.anchors_scale)
        return [()]

    def compare(
        self, x: np.ndarray, ground_truths: np.ndarray, delta: np.ndarray, ssds: bool
    ) -> float:
        param, extents = self.param.yolov3_param, x.shape[2:]
        cells = grids.to_cells(x, self.anchors, slice(4, None))
        delta[:, 4] = cells[:, 4]
        self.spare(delta, grids.boxes_of(cells, self.sizes[self.mask]), ground_truths, param.thresh)
        for label, *box in ground_truths:
            column, row = grids.cell_of(box, extents)
            for n in self._anchors_of(box):
                aims = grids.aims_of(box, extents, self.sizes[self.mask[n]])
                at = n, slice(None), row, column
                self._aim(cells[at], delta[at], int(label), box, aims)
        loss = float((delta.astype(np.float64) ** 2).sum())
        if param.use_logic_gradient:
            for part in slice(2), slice(4, None):
                delta[:, part] *= cells[:, part] * (1 - cells[:, part])
        return loss

    def _anchors_of(self, box: list[float]) -> list[int]:
        """Which of the grid's anchors an object belongs to, by their positions in the mask."""
        fits, limit = grids.fits(self.sizes, box), self.param.yolov3_param.iou_thresh
        best = int(fits.argmax())
        anchors = [self.mask.index(best)] if best in self.mask else []
        # The fork compares numbers of all anchors with the best one's position in the mask.
        skipped = anchors[0] if anchors else best
        if limit < 1:
            above = np.flatnonzero(fits > limit).tolist()
            others = [n for n in above if n in self.mask and n != skipped]
            anchors += [self.mask.index(n) for n in others]
        return anchors

    def _aim(
        self, cell: np.ndarray, out: np.ndarray, label: int, box: list[float], aims: np.ndarray
    ) -> None:
        """The deltas of a cell's anchor that has an object."""
        param = self.param.yolov3_param
        out[:4] = -param.coord_scale * (2 - box[2] * box[3]) * (aims - cell[:4])
        out[4] = cell[4] - 1
        if param.use_logic_gradient:
            out[4] *= param.object_scale
        classes, sent = cell[5:], out[5:]
        is_label = np.arange(len(classes)) == label
        smooth = param.label_smooth_eps
        aim = is_label * (1 - smooth) + 0.5 * smooth
        if (sent[is_label] != 0).any():  # a second object there: the first one's class stays too
            sent[is_label] = -param.class_scale * (aim - classes)[is_label]
        elif param.use_focal_loss:
            p = classes[is_label].sum() + 1e-15
            weight = -(1 - p) * (2 * p * np.log(p) + p - 1)
            sent[:] = -param.class_scale * (is_label - classes) * 0.5 * weight
        else:
            sent[:] = -param.class_scale * (aim - classes)
