"""Distances of features to classes and between faces' landmarks, and losses of them:
InnerDistance and GeneralContrastiveLoss (NormFace; happynear/caffe-windows), WeightEuclideanLoss.
"""

from __future__ import annotations

import math

import numpy as np

from ...layers.base import Arrays, Blobs, Flags, Layer, Program, Shapes, register
from ...layers.core.losses import Loss, Pairs

LENGTHS = {"L2": ("(a - b) * (a - b)", "2 * (a - b)"), "L1": ("abs(a - b)", "sign(a - b)")}
"""Of each distance_type: what is summed over the features, and its derivative to a."""
EPS = 1e-6


@register("InnerDistance")
class InnerDistance(Layer):
    """Distances of each item's features to those of num_output centers: squared L2, or L1.

    The centers are a parameter (num_output, features), which `normalize` keeps at length 1 (its
    gradient is that of plain distances), or bottom[1], whose items they are. With
    update_center_only the last bottom has labels, and only the center of its own class learns from
    an item.
    """

    bottoms = (1, 3)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.inner_distance_param
        axis = self.axis(param.axis, len(bottom[0]), "inner_distance_param.axis")
        if param.distance_type not in LENGTHS:
            known = f'is "{param.distance_type}": give one of {", ".join(LENGTHS)}'
            self.fail("inner_distance_param.distance_type", known)
        if param.transpose:
            self.fail("inner_distance_param.transpose", "is not supported: the fork ignores it")
        self.value, self.slope = LENGTHS[param.distance_type]
        items, features = math.prod(bottom[0][:axis]), math.prod(bottom[0][axis:])
        self.labelled = param.update_center_only
        given = len(bottom) - 1 - self.labelled
        if given not in (0, 1):
            self.fail("bottom", "must be features, centers if they are given and, with "
                      "update_center_only, labels")  # fmt: skip
        if given and math.prod(bottom[1][1:]) != features:
            self.fail("bottom[1]", f"has shape {bottom[1]}, but items of bottom[0] {features}")
        if not given:
            self.check_positive("inner_distance_param", "num_output")
            self.add_parameter((param.num_output, features), param.weight_filler)
        self.given, centers = bool(given), bottom[1][0] if given else param.num_output
        if self.labelled:
            self.take_labels(bottom, items, centers, index=given + 1)
            self.no_gradient = (given + 1,)
        self.features, self.centers = (items, 1, features), (1, centers, features)
        self.distances = (items, centers, 1)
        return [(*bottom[0][:axis], centers)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        center = bottom[1].data if self.given else self.parameters[0].data
        if self.param.inner_distance_param.normalize and not self.given:
            total, eps = self.tensor((self.centers[1], 1)), {"eps": EPS}
            program.reduce([center], total, formula="y = a * a", axes=(1,))
            unit = "y = a / sqrt(b + eps)"
            program.broadcast([center, total], [center], formula=unit, constants=eps)
        self.pair = [bottom[0].data.view(self.features), center.view(self.centers)]
        y = top[0].data.view(self.distances)
        program.reduce(self.pair, y, formula=f"y = {self.value}", axes=(2,))

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        inputs, formula = [*self.pair, top[0].diff.view(self.distances)], f"c * {self.slope}"
        if propagate_down[0]:
            dx = bottom[0].diff.view(self.features)
            program.reduce(inputs, dx, formula=f"y = {formula}", axes=(1,))
        if self.labelled:
            label = bottom[-1].data.view((self.features[0], 1, 1))
            inputs += [label, self.indices(program, (1, self.centers[1], 1))]
            formula = f"where(d == e, {formula}, 0)"
        dw = self.gradient(0)
        if self.given and propagate_down[1]:
            dw = bottom[1].diff.view(self.centers)
        if dw is not None:
            program.reduce(inputs, dw, formula=f"y = -{formula}", axes=(0,))


@register("GeneralContrastiveLoss")
class GeneralContrastiveLoss(Loss):
    """Draws items to their own class, from positive_margin on, and from others up to a margin.

    bottom[0] has distances (items, classes); a third bottom those that count in their place. Of an
    item's own class counts the distance beyond positive_margin, up to positive_outlier_thresh; of
    others what lacks to negative_margin (exp_negative_weight: exp(-distance)). A second top: both
    means and, with add_intra_mae, the mean distance to own classes over the passes, which the
    margin then grows by. The host computes it, as the fork does, whose gradients are not slopes
    with max_positive_only, exp_negative_weight and others.
    """

    bottoms = (2, 3)
    tops = (1, 2)
    no_gradient = (1, 2)
    non_differentiable_tops = (1,)
    messages = ("general_contrastive_loss_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        self.check_batches(bottom)
        self.scores = (bottom[0][0], math.prod(bottom[0][1:]))
        self.take_labels(bottom, *self.scores)
        if len(bottom) > 2:
            self.check_count(bottom, 2, math.prod(self.scores))
        self.mean_distance = 0.0
        return [(), (3 if self.param.general_contrastive_loss_param.add_intra_mae else 2,)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.slopes = self.tensor(self.scores)
        distances = bottom[2] if len(bottom) > 2 else bottom[0]
        means = top[1].data if len(top) > 1 else self.tensor((3,))
        reads = [distances.data.view(self.scores), bottom[1].data.view(self.scores[:1])]
        program.host(reads, [top[0].data, means, self.slopes], function=self._compare)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        inputs, share = [self.slopes, top[0].diff.view((1, 1))], {"share": 1 / self.scores[0]}
        dx = bottom[0].diff.view(self.scores)
        program.broadcast(inputs, [dx], formula="y = share * a * b", constants=share)

    def _compare(self, reads: Arrays, writes: Arrays) -> None:
        """Write the loss, the means and the slopes, of distances (items, classes) and labels."""
        param = self.param.general_contrastive_loss_param
        distance, label = reads[0].astype(np.float64), reads[1].astype(int)
        outside = (label < 0) | (label >= distance.shape[1])  # of no class: all becomes NaN
        label = np.where(outside, 0, label)
        items, is_label = len(distance), np.arange(distance.shape[1]) == label[:, None]
        rows = np.arange(len(distance))
        margin = param.negative_margin + self.mean_distance * param.add_intra_mae
        same = distance[rows, label]
        beyond = (same - param.positive_margin).clip(0, param.positive_outlier_thresh)
        lacking = np.where(is_label, 0, margin - distance).clip(0)
        weight = param.negative_weight * np.where(lacking > 0, 1.0, 0)
        size = lacking
        if param.exp_negative_weight:
            size = np.exp(-distance)
            weight *= size
        size = param.negative_weight * np.where(lacking > 0, size, 0)
        draws = beyond > 0
        draws &= same < param.positive_outlier_thresh
        counts, pull = np.ones(items, bool), param.positive_weight * beyond
        if param.max_positive_only:  # that is, the fork keeps the least
            counts = rows == pull.argmin()
        if param.max_negative_only:
            scores = np.where(is_label, np.where(label[:, None] == 0, pull[:, None], -np.inf), size)
            others = np.arange(distance.shape[1]) != scores.argmax(axis=1)[:, None]
            size, weight = np.where(others, 0, size), np.where(others, 0, weight)
        far = np.full(items, param.positive_first) & (same > param.positive_upper_bound)
        size, weight = np.where(far[:, None], 0, size), np.where(far[:, None], 0, weight)
        loss, means, slopes = writes
        loss[...] = (np.abs(size).sum() + np.abs(pull[counts]).sum()) / items
        if param.HasField("normalize_negative"):
            excess = abs(weight.sum()) / param.normalize_negative / items
            weight /= excess if excess > param.positive_weight else 1
        slopes[...] = -weight
        slopes[rows, label] = param.positive_weight * (far | (draws & counts))
        self.mean_distance += 0.01 * (beyond.mean() - self.mean_distance)
        self.mean_distance = min(self.mean_distance, param.max_negative_margin)
        statistics = [beyond.mean(), lacking.sum() / items / max(1, distance.shape[1] - 1)]
        means[...] = [*statistics, self.mean_distance][: len(means)]
        if outside.any():
            loss[...] = slopes[outside] = np.nan


POINTS = 68
CONTOUR = 17
COARSE = np.array([18, 22, 23, 27, 37, 40, 43, 46, 28, 32, 36, 49, 55]) - 1
"""Of the 68 points of a face the first ones are its contour; these are ends of brows, corners of
eyes and mouth, and the nose's."""


@register("WeightEuclideanLoss")
class WeightEuclideanLoss(Pairs):
    """Half the weighted squared distances of 68 points (x of all, then y), the mean over the batch.

    contour_weight: of the first 17; main_weight: of the others; coarse_weight: of 13 of all, if it
    is given. normalized: divided by the distance of the eyes of bottom[1] (from x and y of two
    points each, as in the fork) or, with a normalized_type, by the diagonal of what holds its
    points and reaches from 0 to 1 at least. bottom[2]: factors of the loss, not of its gradients.
    """

    bottoms = (2, 3)
    no_gradient = (2,)
    host_is_pure = True

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.weight_euclidean_loss_param
        self.check_batches(bottom)
        for i in range(len(bottom)):
            self.check_count(bottom, i, 2 * POINTS * bottom[0][0])
        self.shape = (bottom[0][0], 2 * POINTS)
        weights = np.full(POINTS, param.main_weight)
        weights[:CONTOUR] = param.contour_weight
        if param.coarse_weight:
            weights[COARSE] = param.coarse_weight
        self.weights = self.tensor((1, 2 * POINTS), persistent=True)
        self.initial = [(self.weights, np.tile(weights, 2)[None].astype(np.float32))]
        self.constants = {"share": 1 / bottom[0][0]}
        return [()]

    def _measure(self, reads: Arrays, writes: Arrays) -> None:
        """Write the factor of each item."""
        x, y = (each.astype(np.float64) for each in np.split(reads[0], 2, axis=1))
        if self.param.weight_euclidean_loss_param.normalized_type:
            spans = [each.max(axis=1).clip(min=0) - each.min(axis=1).clip(max=1) for each in (x, y)]
        else:
            spans = [x[:, 36] - x[:, 42], y[:, 39] - y[:, 45]]
        tiny = np.finfo(np.float32).tiny
        writes[0][:, 0] = 1 / np.hypot(*spans).clip(tiny)

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        inputs = [blob.data.view(self.shape) for blob in bottom]
        rate = self.tensor((self.shape[0], 1))
        if self.param.weight_euclidean_loss_param.normalized:
            program.host([inputs[1]], [rate], function=self._measure)
        else:
            program.fill(rate, value=1.0)
        self.factors = [self.weights, rate]
        formula = "y = 0.5 * share * c * d * (a - b) * (a - b)" + " * e" * (len(bottom) > 2)
        inputs[2:2] = self.factors
        program.reduce(
            inputs, top[0].data, formula=formula, axes=(0, 1), constants=self.constants
        )  # fmt: skip

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        formula = "y = share * c * d * e * (a - b)"
        self.backward_pair(program, top, propagate_down, bottom, self.factors, formula)
