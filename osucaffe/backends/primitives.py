"""Owns the list of primitives: the name, tensors and settings of each, the same on every backend.

A layer calls them on a `Program`, which records the call instead of running it. A backend has, for
each name, a function `name(call, *tensors, **settings) -> Step` that prepares the call: it may
choose the layout of flexible tensors and ask for scratch; the step it returns reads
`tensor.array` (or `.address`) only when it runs, because memory is placed in between.

The annotation of an argument is its role: Read, Write, Update (read, then written in place), or
Gradient (a parameter's gradient: overwritten, or added to when `call.accumulates` names it).
`Reads`, `Writes` are lists; `... | None` may be None; what stands after the `*` is a setting.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .tensor import Call, Tensor

Read = Tensor
Write = Tensor
Update = Tensor
Gradient = Tensor
Reads = list[Tensor]
Writes = list[Tensor]
Updates = list[Tensor]
_Declaration = TypeVar("_Declaration", bound=Callable[..., None])

NAMES: list[str] = []
"""Every primitive, in the order of this file."""


def _primitive(declaration: _Declaration) -> _Declaration:
    """Turn a declaration (a signature and a docstring) into a method that records the call."""
    signature = inspect.signature(declaration)
    # Annotations are strings here (`from __future__ import annotations`): "Read | None" -> "Read".
    roles = {
        name: parameter.annotation.split(" ")[0].removesuffix("s")
        for name, parameter in signature.parameters.items()
        if name != "self" and parameter.kind is not parameter.KEYWORD_ONLY
    }
    NAMES.append(declaration.__name__)

    @functools.wraps(declaration)
    def record(self: Program, *tensors: Any, **settings: Any) -> None:
        bound = signature.bind(self, *tensors, **settings)
        bound.apply_defaults()
        given = {name: value for name, value in bound.arguments.items() if name != "self"}
        tensor_roles = {name: role for name, role in roles.items() if given[name] is not None}
        self.add(
            Call(
                declaration.__name__,
                reads={n: given[n] for n, r in tensor_roles.items() if r in ("Read", "Update")},
                writes={n: given[n] for n, r in tensor_roles.items() if r != "Read"},
                settings={n: value for n, value in given.items() if n not in tensor_roles},
                layer=self.layer,
            ),
            gradients=[n for n, r in tensor_roles.items() if r == "Gradient"],
        )

    return record  # type: ignore[return-value]


class Program:
    """A list of calls in the making.

    layer: the name of the layer that is being recorded.
    accumulate: add to every parameter gradient (a further sub-iteration of `iter_size`).
    """

    def __init__(self, *, accumulate: bool = False) -> None:
        self.calls: list[Call] = []
        self.layer = ""
        self.accumulate = accumulate
        self._written: set[int] = set()

    def add(self, call: Call, gradients: Sequence[str] = ()) -> None:
        """Append a call. A gradient that was written before (shared parameters) is added to."""
        call.accumulates = frozenset(
            name for name in gradients if self.accumulate or self.has_written(call.writes[name])
        )
        self._written.update(id(tensor.base or tensor) for tensor in call.written_tensors())
        self.calls.append(call)

    def has_written(self, tensor: Tensor) -> bool:
        """Whether a call recorded so far writes this tensor (or the one that it views)."""
        return id(tensor.base or tensor) in self._written

    # -- data movement -------------------------------------------------------------------------

    @_primitive
    def fill(self, y: Write, *, value: float) -> None:
        """Set every element of y to value."""

    @_primitive
    def copy(self, x: Read, y: Write) -> None:
        """y = x, of the same shape (the layouts may differ)."""

    @_primitive
    def concat(self, xs: Reads, y: Write, *, axis: int) -> None:
        """Put xs behind one another along axis."""

    @_primitive
    def split(self, x: Read, ys: Writes, *, axis: int) -> None:
        """Cut x along axis into ys: concat backwards. A None in ys skips that part."""

    @_primitive
    def permute(self, x: Read, y: Write, *, axes: Sequence[int]) -> None:
        """y = x with its axes in another order: axis i of y is axis axes[i] of x."""

    @_primitive
    def crop(self, x: Read, y: Write, *, offsets: Sequence[int]) -> None:
        """y = the box of x that begins at offsets and has y's extents."""

    @_primitive
    def crop_backward(self, dy: Read, dx: Write, *, offsets: Sequence[int]) -> None:
        """dx = dy in that box, zero outside it."""

    @_primitive
    def gather(self, x: Read, index: Read, y: Write) -> None:
        """y[i] = x[index[i]]: pick along the first axis of x; y is (*index's shape, *rest of x's).

        index: floats that hold whole numbers. Where one is out of range, y[i] is NaN.
        """

    @_primitive
    def gather_backward(self, dy: Read, index: Read, dx: Write) -> None:
        """dx[index[i]] = the sum of those dy[i], zero where nothing was picked."""

    @_primitive
    def gather_gradient(self, dy: Read, index: Read, dw: Gradient) -> None:
        """`gather_backward` for a parameter."""

    @_primitive
    def positions(self, y: Write) -> None:
        """y = 0, 1, 2, ... in row-major order."""

    @_primitive
    def host(
        self, reads: Reads, writes: Writes, *, function: Callable[..., None], feed: bool = False
    ) -> None:
        """Run a Python function on the host: function(reads, writes), lists of NumPy arrays.

        It changes the arrays of writes, which hold the tensors' values, in place.
        feed: it brings input: called without arguments, it calls `tensor.place` (row-major) on
        each of writes with the host memory of the next batch, instead of filling the memory that
        they have.
        """

    @_primitive
    def transform(
        self,
        x: Read,
        table: Read,
        mean: Read | None,
        y: Write,
        *,
        scale: float,
        interleaved: bool = False,
    ) -> None:
        """y[n] = (a crop of x[n] - mean) * scale, mirrored perhaps: see `records.transform_record`.

        x: uint8 (N, C, *in), or interleaved (N, *in, C). table: int32 (N, 3), for each record the
        first row and column of the crop, and 1 where it is mirrored. mean: (C, 1, 1), or (C, *in)
        and cropped likewise.
        """

    # -- element by element --------------------------------------------------------------------

    @_primitive
    def elementwise(
        self,
        inputs: Reads,
        outputs: Writes,
        *,
        formula: str,
        constants: dict[str, float] | None = None,
    ) -> None:
        """Evaluate a formula (see `formula.py`) over tensors of one shape.

        Inputs are called a, b, c, ... in the formula in their order; outputs y, z. An output
        may be the same tensor as an input.
        """

    @_primitive
    def broadcast(
        self,
        inputs: Reads,
        outputs: Writes,
        *,
        formula: str,
        constants: dict[str, float] | None = None,
    ) -> None:
        """`elementwise` over tensors of as many axes as the outputs, in which an input's extent
        may be 1 where the outputs' is not: it is repeated."""

    @_primitive
    def reduce(
        self,
        inputs: Reads,
        y: Write,
        *,
        formula: str,
        axes: Sequence[int],
        constants: dict[str, float] | None = None,
    ) -> None:
        """y = the sum over axes of the formula's y, evaluated as in `broadcast`.

        y has as many elements as the other axes of the inputs together, in their order.
        """

    @_primitive
    def reduce_gradient(
        self,
        inputs: Reads,
        dw: Gradient,
        *,
        formula: str,
        axes: Sequence[int],
        constants: dict[str, float] | None = None,
    ) -> None:
        """`reduce` into the gradient of a parameter (the formula still writes y)."""

    @_primitive
    def sum(self, xs: Reads, y: Write, *, coefficients: Sequence[float] | None = None) -> None:
        """y = sum of coefficient * x over xs, all of one shape; y may be one of xs."""

    @_primitive
    def dropout(self, x: Read, y: Write, mask: Write, *, ratio: float, key: int) -> None:
        """y = x * keep / (1 - ratio), keep drawn by `random.squares32` for (seed, step, key, i).

        mask: uint8 of x's shape, 1 where kept; a backend may leave it unwritten and draw again
        in `dropout_backward`. y may be x.
        """

    @_primitive
    def dropout_backward(self, dy: Read, mask: Read, dx: Write, *, ratio: float, key: int) -> None:
        """dx = dy * keep / (1 - ratio). dx may be dy."""

    # -- convolution and inner product ---------------------------------------------------------

    @_primitive
    def convolution(
        self,
        x: Read,
        w: Read,
        b: Read | None,
        y: Write,
        *,
        stride: Sequence[int],
        pad: Sequence[int],
        dilation: Sequence[int],
        group: int,
        relu: float | None = None,
    ) -> None:
        """y (N, O, *out) = x (N, C, *in) correlated with w (O, C / group, *kernel), plus b (O,).

        relu: then y = y if y > 0 else relu * y (set by the fusion pass).
        """

    @_primitive
    def convolution_backward_data(
        self,
        dy: Read,
        w: Read,
        dx: Write,
        *,
        stride: Sequence[int],
        pad: Sequence[int],
        dilation: Sequence[int],
        group: int,
    ) -> None:
        """dx = the gradient of `convolution` to x."""

    @_primitive
    def convolution_backward_filter(
        self,
        x: Read,
        dy: Read,
        dw: Gradient | None,
        db: Gradient | None,
        *,
        stride: Sequence[int],
        pad: Sequence[int],
        dilation: Sequence[int],
        group: int,
    ) -> None:
        """dw, db = the gradients of `convolution` to w and b (either may be None)."""

    @_primitive
    def inner_product(
        self,
        x: Read,
        w: Read,
        b: Read | None,
        y: Write,
        *,
        axis: int,
        transpose: bool,
        relu: float | None = None,
    ) -> None:
        """y = X W^T + b: X is x with axes from `axis` on flattened to K; w is (O, K), or (K, O).

        transpose: w is (K, O). relu: as in `convolution`.
        """

    @_primitive
    def inner_product_backward_data(
        self, dy: Read, w: Read, dx: Write, *, axis: int, transpose: bool
    ) -> None:
        """dx = the gradient of `inner_product` to x."""

    @_primitive
    def inner_product_backward_filter(
        self,
        x: Read,
        dy: Read,
        dw: Gradient | None,
        db: Gradient | None,
        *,
        axis: int,
        transpose: bool,
    ) -> None:
        """dw, db = the gradients of `inner_product` to w and b (either may be None)."""

    @_primitive
    def im2col(
        self,
        x: Read,
        y: Write,
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        """y (N, C * kernel elements, *out) = the windows of x (N, C, *in), zero in the padding."""

    @_primitive
    def im2col_backward(
        self,
        dy: Read,
        dx: Write,
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        """dx = the sum of dy where each element of x stands in windows."""

    # -- activations with a primitive of their own (the libraries fuse them) --------------------

    @_primitive
    def relu(self, x: Read, y: Write, *, slope: float) -> None:
        """y = x if x > 0 else slope * x. y may be x."""

    @_primitive
    def relu_backward(self, x: Read, dy: Read, dx: Write, *, slope: float) -> None:
        """dx = dy if x > 0 else slope * dy. x may be the output (in place); dx may be dy."""

    # -- pooling -------------------------------------------------------------------------------

    @_primitive
    def max_pooling(
        self,
        x: Read,
        y: Write,
        index: Write | None,
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
    ) -> None:
        """y (N, C, *out) = the maximum of each window of x (N, C, *in); windows end at the image.

        index: int32 of y's shape, where the (first) maximum stands in its flattened channel of x;
        flexible: a backend may keep another note in it for `max_pooling_backward`.
        The extents of y say how many windows there are (Caffe rounds up or down).
        """

    @_primitive
    def max_pooling_backward(
        self,
        dy: Read,
        index: Read,
        dx: Write,
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
    ) -> None:
        """dx = dy added at each window's maximum, zero elsewhere."""

    @_primitive
    def average_pooling(
        self,
        x: Read,
        y: Write,
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
    ) -> None:
        """y = the sum of each window over its area within the padded image (as Caffe counts it:
        padding up to extent + pad counts, what reaches beyond it does not)."""

    @_primitive
    def average_pooling_backward(
        self,
        dy: Read,
        dx: Write,
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
    ) -> None:
        """dx = dy / area spread over each window."""

    @_primitive
    def stochastic_pooling(
        self,
        x: Read,
        y: Write,
        index: Write,
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        key: int,
        train: bool,
    ) -> None:
        """Zeiler & Fergus 2013. train: an element drawn with probability x / sum, its index noted
        as in `max_pooling`; else sum(x^2) / sum(x). x >= 0. Backward is `max_pooling_backward`."""

    # -- normalization -------------------------------------------------------------------------

    @_primitive
    def lrn(
        self,
        x: Read,
        y: Write,
        note: Write,
        *,
        size: int,
        alpha: float,
        beta: float,
        k: float,
        within_channel: bool,
    ) -> None:
        """y = x * s^-beta (Krizhevsky et al. 2012, section 3.3).

        Across channels: s = k + alpha / size * sum of x^2 over `size` neighbouring channels;
        within: s = 1 + alpha * mean of x^2 over a size x size window, zero-padded (k not used).
        note: float32 of x's shape, flexible: s, or what else the backend's backward wants.
        """

    @_primitive
    def lrn_backward(
        self,
        x: Read,
        y: Read,
        dy: Read,
        note: Read,
        dx: Write,
        *,
        size: int,
        alpha: float,
        beta: float,
        k: float,
        within_channel: bool,
    ) -> None:
        """dx = the gradient of `lrn` to x."""

    @_primitive
    def batch_norm_statistics(
        self,
        x: Read,
        mean: Write,
        rate: Write,
        past_means: Update,
        past_variances: Update,
        past_weight: Update,
        *,
        eps: float,
        fraction: float,
    ) -> None:
        """mean, rate (C,) = the mean of each channel of x (N, C, ..), and 1 / sqrt(variance + eps).

        The past: past_means = fraction * past_means + mean, past_variances (C,) likewise with the
        unbiased variance, past_weight (1,) = fraction * past_weight + 1.
        """

    @_primitive
    def batch_norm(
        self,
        x: Read,
        mean: Read | None,
        rate: Read | None,
        scale: Read | None,
        bias: Read | None,
        addend: Read | None,
        y: Write,
        *,
        relu: bool = False,
    ) -> None:
        """y = (x - mean) * rate * scale + bias + addend, where what is None is left out.

        x, addend, y: (N, C, ..); the others: (C,). relu: then y = max(y, 0). y may be x or the
        addend. (addend and relu are set by the fusion pass.)
        """

    @_primitive
    def batch_norm_backward(
        self,
        x: Read,
        dys: Reads,
        mean: Read | None,
        rate: Read | None,
        scale: Read | None,
        bias: Read | None,
        positive: Read | None,
        dy: Write | None,
        dx: Write | None,
        dscale: Gradient | None,
        dbias: Gradient | None,
        *,
        constant: bool,
        relu: bool = False,
    ) -> None:
        """The gradients of `batch_norm`. dys: parts of the gradient of y, which is their sum.

        constant: mean and rate do not depend on x. relu: there was one; positive: its output, or
        None where it follows from x, as it does without an addend. dy: the gradient behind the
        ReLU, which is the addend's. dx or dy may be one of dys. (More than one part, relu, bias,
        positive and dy are set by the fusion pass.)
        """

    @_primitive
    def softmax(self, x: Read, y: Write, *, axis: int) -> None:
        """y = exp(x - max) / sum of it, along axis. y may be x."""

    @_primitive
    def softmax_backward(self, y: Read, dy: Read, dx: Write, *, axis: int) -> None:
        """dx = y * (dy - sum(y * dy) along axis). dx may be dy."""

    # -- recurrent nets ------------------------------------------------------------------------

    @_primitive
    def recurrent(
        self,
        x: Read,
        keep: Read,
        w: Read | None,
        h_first: Read | None,
        c_first: Read | None,
        gates: Write,
        h_in: Write | None,
        h: Write,
        c: Write | None,
        *,
        formula: str,
    ) -> None:
        """Run a cell over time: for each t, gates[t] = x[t] + h_in[t] w^T, then the formula.

        x, gates: (T, N, K * D); keep: (T, N), what is left of the state before each step (0 begins
        a sequence); w: (K * D, D), or None as h_in then is; h, c: (T, N, D), what each step puts
        out and its inner state (None: it has none); h_in[t] = keep[t] * h[t - 1], or h_first
        (N, D) for t = 0. formula: from x0, x1, ... (the K parts of gates[t]), keep and c_in (that
        is c[t - 1], or c_first for t = 0) it computes h and c.
        """

    @_primitive
    def recurrent_backward(
        self,
        keep: Read,
        w: Read | None,
        c_first: Read | None,
        gates: Read,
        c: Read | None,
        dh: Read,
        dh_last: Read | None,
        dc_last: Read | None,
        dgates: Write,
        dh_first: Write | None,
        dc_first: Write | None,
        *,
        formula: str,
    ) -> None:
        """dgates (which is dx too), dh_first, dc_first = the gradients of `recurrent`.

        dh_last, dc_last: (N, D), what h and c get behind the last step besides dh. formula: from
        x0 ..., keep, c_in, c, dh and dc it computes dx0 ..., and dc_in (where there is a c).
        """

    # -- losses and scores ---------------------------------------------------------------------

    @_primitive
    def softmax_loss(
        self,
        x: Read,
        label: Read,
        probability: Write,
        loss: Write,
        *,
        axis: int,
        ignore: int | None,
        normalization: str,
    ) -> None:
        """loss (scalar) = -sum of log softmax(x)[label] / normalizer; x (N, .., C, ..) on axis.

        label: floats that hold whole numbers, (N, ..) without the axis. ignore: label to skip.
        normalization: FULL (all positions), VALID (those not ignored), BATCH_SIZE (extents before
        axis), NONE (1); the normalizer is at least 1. A label outside 0..C-1 sets the loss to NaN.
        """

    @_primitive
    def softmax_loss_backward(
        self,
        probability: Read,
        label: Read,
        dloss: Read,
        dx: Write,
        *,
        axis: int,
        ignore: int | None,
        normalization: str,
    ) -> None:
        """dx = dloss * (probability - one at the label) / normalizer; zero where ignored."""

    @_primitive
    def accuracy(
        self,
        x: Read,
        label: Read,
        y: Write,
        per_class: Write | None,
        *,
        axis: int,
        top_k: int,
        ignore: int | None,
    ) -> None:
        """y = the share of positions whose label is among the top_k of x along axis.

        A label counts when fewer than top_k others are larger or equal (C++ Caffe 1.0).
        per_class: (C,), the same for each class; 0 for a class without positions.
        """

    @_primitive
    def top_k(self, x: Read, index: Write | None, value: Write | None, *, axis: int) -> None:
        """The largest of x along axis, in falling order: as many as the outputs are long there.

        index: float32. Of equal elements the later comes first (C++ Caffe 1.0).
        """

    @_primitive
    def total(self, xs: Reads, y: Write, *, weights: Sequence[float]) -> None:
        """y (scalar) = sum over xs of weight * sum(x): the loss of a net."""

    # -- solvers -------------------------------------------------------------------------------

    @_primitive
    def sum_of_squares(self, x: Read, y: Write) -> None:
        """y (scalar) = sum of x^2."""

    @_primitive
    def update(
        self,
        weights: Update,
        gradients: Read,
        history: Updates,
        scalars: Read,
        *,
        formula: str,
        names: Sequence[str],
        segments: Sequence[tuple[int, int, float, float]],
        constants: dict[str, float],
    ) -> None:
        """Evaluate an update rule over the arena's flat buffers.

        In the formula w and g are weights and gradients, h and h2 the history; `names` are the
        elements of `scalars` (float32 host or device memory: what changes between iterations);
        segments (start, stop, rate, decay) give `rate` and `decay`, the parameter's multipliers.
        """
