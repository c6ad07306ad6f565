"""Owns Cascade R-CNN's DetectionEvaluate: of boxes in pixels, in images of the sizes of a file.

It computes what zhaoweicai/cascade-rcnn's detection_evaluate_layer.cpp does, on the host as there.
"""

from __future__ import annotations

import logging
import math

import numpy as np

from ...backends.boxes import judge
from ...files import read_file
from .. import anchors
from ..base import Blobs, Program, Shapes
from ..rows import Rows

ROOM = 4096
"""So many boxes there may be in a batch."""

_log = logging.getLogger("osucaffe")


class PixelEvaluate(Rows):
    """Which rows of FrcnnOutput are true, against truth bottom[1]; bottom[2]: height and width."""

    type = "DetectionEvaluate"
    bottoms = (3, 3)
    no_gradient = (0, 1, 2)
    place = 0

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.detection_evaluate_param
        for i, width in enumerate((7, 8, 2)):
            if math.prod(bottom[i][1:]) != width:
                self.fail(f"bottom[{i}]", f"has shape {bottom[i]}, but needs rows of {width}")
        if param.num_classes < 2:
            self.fail("detection_evaluate_param.num_classes", "must be at least 2")
        self.sizes = self._read_sizes(param.name_size_file)
        return [(1, 1, param.num_classes - 1 + ROOM, 5)]

    def _read_sizes(self, path: str) -> np.ndarray:
        """Height and width of each image, from lines of name, height and width."""
        try:
            lines = read_file(path).decode().split("\n") if path else []
        except OSError as error:
            _log.warning(
                "%s, detection_evaluate_param.name_size_file: %s cannot be read (%s): boxes are "
                "compared as they are in the net's input", self.title, path, error.strerror,
            )  # fmt: skip
            return np.zeros((0, 2))
        try:
            rows = [[float(word) for word in line.split()[-2:]] for line in lines if line.strip()]
            return np.array(rows).reshape(-1, 2)
        except ValueError:
            self.fail("detection_evaluate_param.name_size_file",
                      f"{path} must have lines of name, height and width")  # fmt: skip

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.host(
            [blob.data for blob in bottom], list(self.open_rows(top[0])), function=self._run
        )

    def _run(self, reads: list[np.ndarray], writes: list[np.ndarray]) -> None:
        param = self.param.detection_evaluate_param
        found, truth, extents = (each.reshape(len(each), -1).astype(np.float64) for each in reads)
        truth = truth[truth[:, 0] >= 0]
        counted = truth if param.evaluate_difficult_gt else truth[truth[:, 7] == 0]
        labels = range(1, param.num_classes)
        counts = [[-1.0, k, (counted[:, 5] == k).sum(), -1, -1] for k in labels]
        rows = [np.array(counts)]
        for image in np.unique(found[found[:, 0] >= 0, 0]):
            ratio = np.ones(2)
            if len(self.sizes):
                ratio = self.sizes[self.place % len(self.sizes)] / extents[int(image)]
                self.place += 1
            own = found[(found[:, 0] == image) & (found[:, 5] > 0)]
            for label in np.unique(own[:, 5]):
                rows.append(self._judged(
                    own[own[:, 5] == label],
                    truth[(truth[:, 0] == image) & (truth[:, 5] == label)],
                    np.tile(ratio[::-1], 2),
                ))  # fmt: skip
        every = np.concatenate(rows)
        if len(every) > len(writes[0]):
            self.fail("bottom[0]", f"has more than {ROOM} boxes: set max_det_num in FrcnnOutput")
        writes[0].fill(-1)
        writes[0][: len(every)] = every
        writes[1].fill(len(every))

    def _judged(self, found: np.ndarray, truth: np.ndarray, ratio: np.ndarray) -> np.ndarray:
        """image, label, score, true, false of the boxes of one image and label."""
        param = self.param.detection_evaluate_param
        if len(truth):
            found = found[np.argsort(-found[:, 6], kind="stable")]
        shared = anchors.overlaps(found[:, 1:5] * ratio, truth[:, 1:5] * ratio, whole=True)
        skipped = (truth[:, 7] != 0) & (not param.evaluate_difficult_gt)
        verdict = judge(shared, skipped, param.overlap_threshold)
        return np.concatenate([found[:, [0, 5, 6]], verdict], axis=1)
