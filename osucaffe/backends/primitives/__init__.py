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
    recurrence,
    regions,
    solvers,
)
from .recording import PRIMITIVES, Recorder, records

__all__ = ["NAMES", "Program"]


class Program(Recorder):
    """A list of calls in the making, with a method for each primitive."""

    fill = records(movement.Fill)
    copy = records(movement.Copy)
    concat = records(movement.Concat)
    split = records(movement.Split)
    permute = records(movement.Permute)
    crop = records(movement.Crop)
    crop_backward = records(movement.CropBackward)
    gather = records(movement.Gather)
    gather_backward = records(movement.GatherBackward)
    gather_gradient = records(movement.GatherGradient)
    positions = records(movement.Positions)
    host = records(movement.Host)
    transform = records(movement.Transform)
    next_row = records(movement.NextRow)
    cached_batch = records(movement.CachedBatch)
    cached_rows = records(movement.CachedRows)

    elementwise = records(formulas.Elementwise)
    broadcast = records(formulas.Broadcast)
    reduce = records(formulas.Reduce)
    reduce_gradient = records(formulas.ReduceGradient)
    sum = records(formulas.Sum)
    dropout = records(formulas.Dropout)
    dropout_backward = records(formulas.DropoutBackward)
    relu = records(formulas.Relu)
    relu_backward = records(formulas.ReluBackward)

    convolution = records(products.Convolution)
    convolution_backward_data = records(products.ConvolutionBackwardData)
    convolution_backward_filter = records(products.ConvolutionBackwardFilter)
    inner_product = records(products.InnerProduct)
    inner_product_backward_data = records(products.InnerProductBackwardData)
    inner_product_backward_filter = records(products.InnerProductBackwardFilter)
    im2col = records(products.Im2col)
    im2col_backward = records(products.Im2colBackward)

    max_pooling = records(pooling.MaxPooling)
    max_pooling_backward = records(pooling.MaxPoolingBackward)
    unpooling = records(pooling.Unpooling)
    unpooling_backward = records(pooling.UnpoolingBackward)
    interpolation = records(pooling.Interpolation)
    interpolation_backward = records(pooling.InterpolationBackward)
    average_pooling = records(pooling.AveragePooling)
    average_pooling_backward = records(pooling.AveragePoolingBackward)
    stochastic_pooling = records(pooling.StochasticPooling)

    roi_max_pooling = records(regions.RoiMaxPooling)
    roi_max_pooling_backward = records(regions.RoiMaxPoolingBackward)
    roi_average_pooling = records(regions.RoiAveragePooling)
    roi_average_pooling_backward = records(regions.RoiAveragePoolingBackward)
    roi_sampling = records(regions.RoiSampling)
    roi_sampling_backward = records(regions.RoiSamplingBackward)
    roi_warping_rois_backward = records(regions.RoiWarpingRoisBackward)
    hardest = records(regions.Hardest)

    lrn = records(normalization.Lrn)
    lrn_backward = records(normalization.LrnBackward)
    batch_norm_statistics = records(normalization.BatchNormStatistics)
    batch_norm = records(normalization.BatchNorm)
    batch_norm_backward = records(normalization.BatchNormBackward)
    softmax = records(normalization.Softmax)
    softmax_backward = records(normalization.SoftmaxBackward)

    recurrent = records(recurrence.Recurrent)
    recurrent_backward = records(recurrence.RecurrentBackward)

    softmax_loss = records(losses.SoftmaxLoss)
    softmax_loss_backward = records(losses.SoftmaxLossBackward)
    accuracy = records(losses.Accuracy)
    top_k = records(losses.TopK)
    total = records(losses.Total)

    match_boxes = records(detection.MatchBoxes)
    multibox_losses = records(detection.MultiboxLosses)
    multibox_losses_backward = records(detection.MultiboxLossesBackward)
    mine_boxes = records(detection.MineBoxes)
    decode_boxes = records(detection.DecodeBoxes)
    detect_boxes = records(detection.DetectBoxes)
    evaluate_boxes = records(detection.EvaluateBoxes)

    sum_of_squares = records(solvers.SumOfSquares)
    update = records(solvers.Update)


NAMES = list(PRIMITIVES)
"""Every primitive."""
