"""The declarations of the primitives that look at regions of images (rois).

rois: (R, 5), or of as many elements: the image's number, then x1, y1, x2, y2 in the pixels of the
net's input. Times `scale` they are places of the feature map x (N, C, H, W). pad: how much of its
own width and height a region grows on each side first. A region of an image that is not in the
batch gives zeros.
"""

from __future__ import annotations

from ...backends.primitives.recording import Primitive, Read, Write


class RoiMaxPooling(Primitive):
    """y (R, C, *bins) = the maximum of each bin of each region (Girshick 2015).

    Corners are rounded to whole places (halves away from 0), a region has at least one; bins
    overlap where they do not divide it. index: int32 of y's shape, where the (first) maximum
    stands in its flattened channel of x; -1 for a bin outside of x, whose y is 0.
    """

    x: Read
    rois: Read
    y: Write
    index: Write
    scale: float
    pad: float


class RoiMaxPoolingBackward(Primitive):
    """dx = the sum of dy over the bins whose maximum stands there."""

    dy: Read
    rois: Read
    index: Read
    dx: Write
    scale: float
    pad: float


class PsroiPooling(Primitive):
    """y (R, D, G, G): each bin is the average over channels of its own (Dai et al. 2016).

    Bin (h, w) of output d reads channel (d * G + h) * G + w of x (N, D * G * G, H, W). Corners
    are rounded before they are scaled; a region is at least 0.1 wide and high.
    """

    x: Read
    rois: Read
    y: Write
    scale: float


class PsroiPoolingBackward(Primitive):
    """dx = dy / the size of the bin, added over all bins of all regions."""

    dy: Read
    rois: Read
    dx: Write
    scale: float


class Sampling(Primitive, abstract=True, kw_only=True):
    """Where the points of `roi_align` lie."""

    scale: float
    pad: float
    warp: bool = False


class RoiAlign(Sampling):
    """y (R, C, *points): x at the points of a grid over each region.

    Values are interpolated between the centres of x's elements, those beyond the outermost
    continue them; points outside of x give 0. The grid begins and ends at the region's edges,
    and a region without area gives 0 (Cai & Vasconcelos 2018). warp: corners are rounded to
    whole places (halves away from 0), and a point stands where each of as many equal bins
    begins (Dai et al. 2016).
    """

    x: Read
    rois: Read
    y: Write


class RoiAlignBackward(Sampling):
    """dx = dy times the weights of the interpolation, added over all points."""

    dy: Read
    rois: Read
    dx: Write


class RoiWarpingRoisBackward(Primitive):
    """The gradient of the corners for `roi_align` with `warp` and no pad, (R, 5).

    As if corners were not rounded: a point at the share u of the way from one corner to the
    other moves by 1 - u with the first and by u with the second, where u counts the region one
    place longer, as Dai et al. (2016) do. 0 for the image's number, and from points that have
    no neighbour in x to interpolate with on both axes.
    """

    x: Read
    rois: Read
    dy: Read
    drois: Write
    scale: float


class OhemSelect(Primitive):
    """y = 1 for the `count` regions of greatest loss of each image, 0 for the others.

    loss, y: (R, 1, ...); rois: (R, 5, ...), with a region for each place of the axes that
    follow. Of equal losses the earlier come first.
    """

    rois: Read
    loss: Read
    y: Write
    count: int
