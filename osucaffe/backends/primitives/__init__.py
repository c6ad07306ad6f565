"""The core's primitives: the name, tensors and settings of each, the same on every backend.

A layer calls them on a `Program`, which records the call, an object of the primitive's class,
instead of running it. A backend has, for each name, a function that prepares such a call: it may
choose the layout of flexible tensors and ask for scratch; what it returns reads `tensor.array` (or
`.address`) only when it runs, because memory is placed in between.

Each family has a file; `recording.py` says how a declaration is read. A package with primitives of
its own has them in a module, and beside it `cpu.py` and `cuda.py`, which backends import when they
first meet such a call (and `onnx.py`); its layers write `program.record(Upsampling(...))`.
"""

# ruff: noqa: F403, F405 (it has all that its modules declare)

from .formulas import *
from .losses import *
from .movement import *
from .normalization import *
from .pooling import *
from .products import *
from .recording import PRIMITIVES as PRIMITIVES
from .recording import Primitive as Primitive
from .recording import Recorder, recorded
from .records import *
from .recurrence import *
from .solvers import *


class Program(Recorder):
    """A list of calls in the making, with a method for each primitive."""

    fill = recorded(Fill)
    copy = recorded(Copy)
    concat = recorded(Concat)
    split = recorded(Split)
    permute = recorded(Permute)
    crop = recorded(Crop)
    crop_backward = recorded(CropBackward)
    gather = recorded(Gather)
    gather_backward = recorded(GatherBackward)
    arange = recorded(Arange)
    top_k = recorded(TopK)
    collective = recorded(Collective)
    host = recorded(Host)

    transform = recorded(Transform)
    next_row = recorded(NextRow)
    cached_batch = recorded(CachedBatch)
    cached_rows = recorded(CachedRows)

    elementwise = recorded(Elementwise)
    broadcast = recorded(Broadcast)
    reduce = recorded(Reduce)
    sum = recorded(Sum)
    dropout = recorded(Dropout)
    dropout_backward = recorded(DropoutBackward)
    relu = recorded(Relu)
    relu_backward = recorded(ReluBackward)

    convolution = recorded(Convolution)
    convolution_backward_data = recorded(ConvolutionBackwardData)
    convolution_backward_filter = recorded(ConvolutionBackwardFilter)
    inner_product = recorded(InnerProduct)
    inner_product_backward_data = recorded(InnerProductBackwardData)
    inner_product_backward_filter = recorded(InnerProductBackwardFilter)
    im2col = recorded(Im2col)
    im2col_backward = recorded(Im2colBackward)

    max_pooling = recorded(MaxPooling)
    max_pooling_backward = recorded(MaxPoolingBackward)
    average_pooling = recorded(AveragePooling)
    average_pooling_backward = recorded(AveragePoolingBackward)
    stochastic_pooling = recorded(StochasticPooling)

    lrn = recorded(Lrn)
    lrn_backward = recorded(LrnBackward)
    batch_norm_statistics = recorded(BatchNormStatistics)
    batch_norm = recorded(BatchNorm)
    batch_norm_backward = recorded(BatchNormBackward)
    batch_norm_pooling = recorded(BatchNormPooling)
    batch_norm_pooling_backward = recorded(BatchNormPoolingBackward)
    softmax = recorded(Softmax)
    softmax_backward = recorded(SoftmaxBackward)

    recurrent = recorded(Recurrent)
    recurrent_backward = recorded(RecurrentBackward)

    softmax_loss = recorded(SoftmaxLoss)
    softmax_loss_backward = recorded(SoftmaxLossBackward)
    accuracy = recorded(Accuracy)
    total = recorded(Total)

    sum_of_squares = recorded(SumOfSquares)
    segment_sums = recorded(SegmentSums)
    update = recorded(Update)
