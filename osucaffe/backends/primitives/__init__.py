"""Owns the list of primitives: the name, tensors and settings of each, the same on every backend.

A layer calls them on a `Program`, which records the call instead of running it. A backend has, for
each name, a function `name(call, args) -> Step` that prepares the call, given the arguments as an
object of the class that declares them: it may choose the layout of flexible tensors and ask for
scratch; the step it returns reads `tensor.array` (or `.address`) only when it runs, because memory
is placed in between.

Each family has a file; `recording.py` says how a declaration is read.
"""

from . import (
    detection,
    formulas,
    losses,
    movement,
    normalization,
    pooling,
    products,
    records,
    recurrence,
    regions,
    solvers,
)
from .recording import PRIMITIVES, Recorder, recorded

__all__ = ["NAMES", "Program"]


class Program(Recorder):
    """A list of calls in the making, with a method for each primitive."""

    fill = recorded(movement.Fill)
    copy = recorded(movement.Copy)
    concat = recorded(movement.Concat)
    split = recorded(movement.Split)
    permute = recorded(movement.Permute)
    crop = recorded(movement.Crop)
    crop_backward = recorded(movement.CropBackward)
    gather = recorded(movement.Gather)
    gather_backward = recorded(movement.GatherBackward)
    gather_gradient = recorded(movement.GatherGradient)
    positions = recorded(movement.Positions)
    top_k = recorded(movement.TopK)
    collective = recorded(movement.Collective)
    host = recorded(movement.Host)

    transform = recorded(records.Transform)
    next_row = recorded(records.NextRow)
    cached_batch = recorded(records.CachedBatch)
    cached_rows = recorded(records.CachedRows)

    elementwise = recorded(formulas.Elementwise)
    broadcast = recorded(formulas.Broadcast)
    reduce = recorded(formulas.Reduce)
    reduce_gradient = recorded(formulas.ReduceGradient)
    sum = recorded(formulas.Sum)
    dropout = recorded(formulas.Dropout)
    dropout_backward = recorded(formulas.DropoutBackward)
    relu = recorded(formulas.Relu)
    relu_backward = recorded(formulas.ReluBackward)

    convolution = recorded(products.Convolution)
    convolution_backward_data = recorded(products.ConvolutionBackwardData)
    convolution_backward_filter = recorded(products.ConvolutionBackwardFilter)
    inner_product = recorded(products.InnerProduct)
    inner_product_backward_data = recorded(products.InnerProductBackwardData)
    inner_product_backward_filter = recorded(products.InnerProductBackwardFilter)
    im2col = recorded(products.Im2col)
    im2col_backward = recorded(products.Im2colBackward)

    max_pooling = recorded(pooling.MaxPooling)
    max_pooling_backward = recorded(pooling.MaxPoolingBackward)
    unpooling = recorded(pooling.Unpooling)
    unpooling_backward = recorded(pooling.UnpoolingBackward)
    interpolation = recorded(pooling.Interpolation)
    interpolation_backward = recorded(pooling.InterpolationBackward)
    average_pooling = recorded(pooling.AveragePooling)
    average_pooling_backward = recorded(pooling.AveragePoolingBackward)
    stochastic_pooling = recorded(pooling.StochasticPooling)

    roi_max_pooling = recorded(regions.RoiMaxPooling)
    roi_max_pooling_backward = recorded(regions.RoiMaxPoolingBackward)
    roi_average_pooling = recorded(regions.RoiAveragePooling)
    roi_average_pooling_backward = recorded(regions.RoiAveragePoolingBackward)
    roi_sampling = recorded(regions.RoiSampling)
    roi_sampling_backward = recorded(regions.RoiSamplingBackward)
    roi_warping_rois_backward = recorded(regions.RoiWarpingRoisBackward)
    hardest = recorded(regions.Hardest)

    lrn = recorded(normalization.Lrn)
    lrn_backward = recorded(normalization.LrnBackward)
    batch_norm_statistics = recorded(normalization.BatchNormStatistics)
    batch_norm = recorded(normalization.BatchNorm)
    batch_norm_backward = recorded(normalization.BatchNormBackward)
    batch_norm_pooling = recorded(normalization.BatchNormPooling)
    batch_norm_pooling_backward = recorded(normalization.BatchNormPoolingBackward)
    softmax = recorded(normalization.Softmax)
    softmax_backward = recorded(normalization.SoftmaxBackward)

    recurrent = recorded(recurrence.Recurrent)
    recurrent_backward = recorded(recurrence.RecurrentBackward)

    softmax_loss = recorded(losses.SoftmaxLoss)
    softmax_loss_backward = recorded(losses.SoftmaxLossBackward)
    accuracy = recorded(losses.Accuracy)
    total = recorded(losses.Total)

    match_boxes = recorded(detection.MatchBoxes)
    multibox_losses = recorded(detection.MultiboxLosses)
    multibox_losses_backward = recorded(detection.MultiboxLossesBackward)
    mine_boxes = recorded(detection.MineBoxes)
    decode_boxes = recorded(detection.DecodeBoxes)
    detect_boxes = recorded(detection.DetectBoxes)
    evaluate_boxes = recorded(detection.EvaluateBoxes)

    sum_of_squares = recorded(solvers.SumOfSquares)
    segment_sums = recorded(solvers.SegmentSums)
    update = recorded(solvers.Update)


NAMES = list(PRIMITIVES)
"""Every primitive."""
