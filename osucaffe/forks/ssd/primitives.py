"""The primitives of detectors: boxes that are matched, mined, thinned, scored.

Boxes are (xmin, ymin, xmax, ymax) in shares of the image. priors (2, P, 4): boxes, then variances.
truth (G, 8): image, label, instance, box, difficult; rows of image -1 stand for nothing. location
(N, P, L, 4): boxes coded against the priors, L to each (1, or one a class).
coding: CORNER, CENTER_SIZE or CORNER_SIZE, how; scaled: whether the variances are in the codes
(x = code * variance), or not (x = code).
"""

from __future__ import annotations

from dataclasses import KW_ONLY

from ...backends.primitives.recording import Primitive, Read, ReadWrite, Write


class Coded(Primitive, abstract=True, kw_only=True):
    """How boxes are coded: see above."""

    coding: str
    scaled: bool


class MatchBoxes(Coded):
    """match (N, L, P) = the row of truth that each box has, -1 (none) or -2 (ignored, as where
    there is no truth).

    The boxes are the priors (location None, L = 1), or what location says. Of several to a
    prior, box l takes truth of label l only (background: none). First the pair of the greatest
    iou (intersection over union, above 1e-6) is matched, and so on while there is truth left; then,
    with a threshold, each box that is left takes the truth that it overlaps most, if that is
    enough. iou (N, L, P): with the match, or else the greatest.
    difficult: whether difficult truth counts. inside: ignore boxes that reach beyond the image.
    """

    priors: Read
    ground_truth: Read
    location: Read | None
    match: Write
    iou: Write
    background: int
    difficult: bool
    threshold: float | None
    inside: bool


class Multibox(Coded, abstract=True):
    """What the losses of matched boxes depend on."""

    location: Read
    confidence: Read
    priors: Read
    ground_truth: Read
    match: Read
    _: KW_ONLY
    smooth: bool
    softmax: bool
    background: int
    agnostic: bool
    bounded: str | None
    matched_only: bool


class MultiboxLosses(Multibox):
    """The losses (N, P) of each prior's boxes and scores (N, P, C).

    match: (N, M, P) of `match_boxes`. The boxes' loss is smooth L1 or half the square (not
    smooth), of the difference of codes with variances; 0 where there is no match. bounded:
    coordinates outside of the image of the "prior", or of the "decoded" box, cost nothing.
    The scores' loss is the cross-entropy of softmax, or of sigmoids, with the label of the
    match (agnostic: background + 1); without one with the background's, or with no label at
    all (matched_only; sigmoids). A label that is not a class makes it NaN.
    """

    location_loss: Write
    confidence_loss: Write


class MultiboxLossesBackward(Multibox):
    """Of dloss (1) * (weight * the boxes' losses + those scores' that are chosen).

    dlocation: by the codes with variances, as in SSD, which does not divide again where codes
    are not scaled.
    chosen (N, P): 1 where the scores of a prior without match count too; None: everywhere.
    """

    chosen: Read | None
    dloss: Read
    dlocation: Write | None
    dconfidence: Write | None
    _: KW_ONLY
    weight: float


class MineBoxes(Primitive):
    """negative (N, P) = 1 for priors without match whose losses (N, P) are the highest.

    Of each item: as many as int(matches * ratio), among those with an iou below
    most_overlap. hard: the `size` highest of all priors; matches that are not among them are
    undone. boxes (N or 1, P, 4): before it takes the highest, hard thins these by
    `detect_boxes`' rule (threshold, top_k; those smaller than 1e-5 are left out). Of equals the
    first is higher.
    """

    loss: Read
    match: ReadWrite
    iou: Read
    boxes: Read | None
    negative: Write
    hard: bool
    ratio: float
    most_overlap: float
    size: int
    threshold: float
    top_k: int


class DecodeBoxes(Coded):
    """boxes (N, P, L, 4) of their codes."""

    location: Read
    priors: Read
    boxes: Write


class DetectBoxes(Primitive):
    """y (R, 7) = image, label, score, box of what is found: by item, class and score.

    confidence (N, P, C), boxes (N, P, L, 4). Of each class but the background: the scores above
    `least` (None: all), the highest first (the first of equals), top_k of them (-1: all). A box
    is kept whose overlap with all kept ones is at most threshold, which while above 0.5 is
    multiplied by eta after each (eta < 1). Then the `keep` highest of an item (-1: all).
    length (1): how many rows there are; those after are -1. Nothing at all found: a row for
    each item, (its number, -1 ...).
    """

    boxes: Read
    confidence: Read
    y: Write
    length: Write
    background: int
    least: float | None
    threshold: float
    eta: float
    top_k: int
    keep: int


class EvaluateBoxes(Primitive):
    """y (R, 5): for each class but the background -1, label, how much truth there is, -1, -1.

    Then image, label, score, and 1, 0 if it is true, 0, 1 if false, of each row of found (D, 7)
    with a label: by image, label and (if the image has truth of the label) score. It is true if
    its overlap with the truth that it overlaps most is at least threshold, and it is the first
    to hit that. difficult: whether difficult truth counts; or else what hits that is 0, 0.
    length (1): how many rows there are; those after are -1.
    """

    found: Read
    ground_truth: Read
    y: Write
    length: Write
    classes: int
    background: int
    threshold: float
    difficult: bool
