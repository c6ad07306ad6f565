"""The losses of detectors: MultiBoxLoss, of boxes and their scores against the truth (Liu
et al. 2016, SSD), and FocalLoss, in which what is classified well counts little."""

from __future__ import annotations

import math

from ...backends.primitives.losses import FLT_MIN
from ...layers.base import Blobs, Flags, Program, Shapes, Tensor, register
from ...layers.core.cross_entropy import OfSoftmax
from ...layers.core.losses import pre_fixed, read_normalization
from ..rows import Boxes
from . import primitives as ops


@register("MultiBoxLoss")
class MultiBoxLoss(Boxes):
    """The losses of boxes and of scores against the truth bottom[3], with hard negatives mined."""

    bottoms = (4, 4)
    loss = True
    no_gradient = (2, 3)
    messages = ("multibox_loss_param", "loss_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.multibox_loss_param
        self.lay_out_boxes(bottom, "multibox_loss_param")
        if bottom[3][-1:] != (8,):
            self.fail("bottom[3]", f"has shape {bottom[3]}, but truth has rows of 8 numbers")
        self.ground_truth_shape = (math.prod(bottom[3]) // 8, 8)
        names = {
            name: getattr(type(param), kind).Name(getattr(param, name))
            for name, kind in (("loc_loss_type", "LocLossType"), ("mining_type", "MiningType"),
                               ("conf_loss_type", "ConfLossType"), ("match_type", "MatchType"))
        }  # fmt: skip
        self.mining = names["mining_type"]
        if param.HasField("do_neg_mining") and not param.HasField("mining_type"):
            self.mining = "MAX_NEGATIVE" if param.do_neg_mining else "NONE"
        elif param.HasField("do_neg_mining") and param.do_neg_mining != (self.mining != "NONE"):
            self.fail("multibox_loss_param.do_neg_mining", f"contradicts mining_type {self.mining}")
        if self.mining != "NONE" and not param.share_location:
            self.fail("multibox_loss_param.mining_type", "must be NONE without share_location")
        coding = self.coding(param, not param.encode_variance_in_target)
        self.matching = coding | {
            "background": param.background_label_id,
            "difficult": param.use_difficult_gt,
            "threshold": param.overlap_threshold if names["match_type"] != "BIPARTITE" else None,
            "inside": param.ignore_cross_boundary_bbox,
        }
        bounded = "prior" if param.use_prior_for_matching else "decoded"
        self.settings = coding | {
            "smooth": names["loc_loss_type"] == "SMOOTH_L1",
            "softmax": names["conf_loss_type"] == "SOFTMAX",
            "background": param.background_label_id,
            "agnostic": param.map_object_to_agnostic,
            "bounded": bounded if param.bp_inside else None,
            "matched_only": names["conf_loss_type"] == "LOGISTIC" and self.mining == "NONE",
        }
        # What no gradient is to go to is not part of the loss, as in the fork.
        counted = [*self.param.propagate_down, True, True][:2]
        self.weight = param.loc_weight * counted[0]
        self.constants = {"weight": self.weight, "scored": float(counted[1])}
        items, priors = self.location_shape[:2]
        fixed = {"FULL": items * priors, "BATCH_SIZE": items, "NONE": 1}
        self.divisor = pre_fixed(self) or fixed.get(read_normalization(self))
        return [()]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        param, (items, priors, boxes, _) = self.param.multibox_loss_param, self.location_shape
        bottom[2].keep_exact()
        self.location = bottom[0].data.view(self.location_shape)
        self.priors = bottom[2].data.view(self.prior_shape)
        ground_truth = bottom[3].data.view(self.ground_truth_shape)
        predicted = None if param.use_prior_for_matching else self.location
        shape = (items, boxes if predicted is not None else 1, priors)
        self.match, iou = self.tensor(shape), self.tensor(shape)
        program.record(
            ops.MatchBoxes(self.priors, ground_truth, predicted, self.match, iou, **self.matching)
        )
        self.read = (
            self.location,
            bottom[1].data.view(self.confidence_shape),
            self.priors,
            ground_truth,
        )
        losses = [self.tensor((items, priors)), self.tensor((items, priors))]
        program.record(ops.MultiboxLosses(*self.read, self.match, *losses, **self.settings))
        self.chosen: Tensor | None = None
        if self.mining != "NONE":
            self.chosen = self.tensor((items, priors))
            self._mine(program, losses, iou)
        self._add_up(program, losses, top[0].data)

    def _mine(self, program: Program, losses: list[Tensor], iou: Tensor) -> None:
        """Set `chosen`: the priors without match that count."""
        assert self.chosen is not None
        param, shape = self.param.multibox_loss_param, self.chosen.shape
        hard, boxes, loss = self.mining == "HARD_EXAMPLE", None, losses[1]
        if hard and param.sample_size < 1:
            self.fail("multibox_loss_param.sample_size", "must be at least 1")
        if hard:
            loss = self.tensor(shape)
            program.sum(losses, loss)
        thins = param.HasField("nms_param") and param.nms_param.nms_threshold > 0
        if hard and thins and param.use_prior_for_nms:
            boxes = self.tensor((1, shape[1], 4))
            program.crop(self.priors, boxes, offsets=(0, 0, 0))
        elif hard and thins:
            decoded = self.tensor(self.location_shape)
            coding = {name: self.settings[name] for name in ("coding", "scaled")}
            program.record(ops.DecodeBoxes(self.location, self.priors, decoded, **coding))
            boxes = decoded.view((*shape, 4))
        program.record(ops.MineBoxes(
            loss, self.match.view(shape), iou.view(shape), boxes, self.chosen, hard=hard,
            ratio=param.neg_pos_ratio, most_overlap=param.neg_overlap, size=param.sample_size,
            threshold=param.nms_param.nms_threshold,
            top_k=param.nms_param.top_k if param.nms_param.HasField("top_k") else -1,
        ))  # fmt: skip

    def _add_up(self, program: Program, losses: list[Tensor], loss: Tensor) -> None:
        self.matches, total = self.tensor((1,)), self.tensor((1,))
        flat = (self.match.count,)
        formula = "y = where(a > -0.5, 1, 0)"
        program.reduce([self.match.view(flat)], self.matches, formula=formula, axes=(0,))
        inputs, formula = losses, "y = weight * a + scored * b"
        if self.chosen is not None:  # mining may have undone matches
            inputs = [*losses, self.match.view(losses[0].shape), self.chosen]
            formula = "own = where(c > -0.5, 1, 0); y = weight * own * a + scored * max(own, d) * b"
        program.reduce(inputs, total, formula=formula, axes=(0, 1), constants=self.constants)
        self._divide(program, total, loss.view((1,)))

    def _divide(self, program: Program, total: Tensor, share: Tensor) -> None:
        """By a constant, or by the number of matches."""
        divisor = "max(b, 1)" if self.divisor is None else f"{self.divisor}"
        program.broadcast([total, self.matches], [share], formula=f"y = a / {divisor}")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        scale = self.tensor((1,))
        self._divide(program, top[0].diff.view((1,)), scale)
        shapes = (self.location_shape, self.confidence_shape)
        diffs = [
            blob.diff.view(shape) if down else None
            for blob, shape, down in zip(bottom, shapes, propagate_down, strict=False)
        ]
        program.record(
            ops.MultiboxLossesBackward(
                *self.read,
                self.match,
                self.chosen,
                scale,
                *diffs,
                weight=self.weight,
                **self.settings,
            )
        )


@register("FocalLoss")
class FocalLoss(OfSoftmax):
    """-alpha * (1 - p)^gamma * log p of each label's softmax p (Lin et al. 2017).

    A second top: the probabilities.
    """

    messages = ("focal_loss_param", "softmax_param", "loss_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.focal_loss_param
        if param.Type.Name(param.type) != "ORIGIN":
            self.fail("focal_loss_param.type", "must be ORIGIN: the other forms are not supported")
        if param.gamma < 0:
            self.fail("focal_loss_param.gamma", f"is {param.gamma:g}, but must be at least 0")
        self.read_scores(bottom, self.param.softmax_param.axis, "softmax_param.axis")
        self.constants = {"alpha": param.alpha, "gamma": param.gamma}
        return [(), bottom[0]]

    def forward_loss(self, program: Program, bottom: Blobs, loss: Tensor) -> None:
        self.classes = self.indices(program, (1, self.rows[1], 1))
        self.picked = self.tensor(self.positions)
        inputs = [self.probability, self.targets, self.classes]
        program.reduce(inputs, self.picked, formula="y = where(b == c, a, 0)", axes=(1,))
        value = f"-alpha * (1 - a) ** gamma * log(max(a, {FLT_MIN})) / c"
        program.reduce(
            [self.picked, self.targets, self.divisor], loss, axes=(0, 1, 2),
            formula=f"y = {self.counted('b')} * {value}", constants=self.constants,
        )  # fmt: skip

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        slope = self.tensor(self.positions)  # of the loss to the logarithm of p
        program.broadcast(
            [self.picked, self.targets, self.divisor, top[0].diff.view((1, 1, 1))], [slope],
            formula="far = max(1 - a, 1e-30); "
            f"rise = gamma * far ** (gamma - 1) * a * log(max(a, {FLT_MIN})) - far ** gamma; "
            f"y = {self.counted('b')} * alpha * rise * d / c",
            constants=self.constants,
        )  # fmt: skip
        program.broadcast(
            [self.probability, self.targets, self.classes, slope], [bottom[0].diff.view(self.rows)],
            formula="y = d * (where(b == c, 1, 0) - a)",
        )  # fmt: skip
