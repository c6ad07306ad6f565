"""Convolution and inner product on oneDNN, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...formula import ELU, RELU6
from ...primitives import products as ops
from ...tensor import Step, Tensor
from . import api
from .api import Descriptor, PostOperation, PrimitiveDescriptor, Unsupported
from .elementwise import relu6_operations, relu_operation
from .memory import Formatted
from .preparation import Operand, Preparation, padding_behind

_WEIGHTS = [1]
"""Where the weights, which are small, stand among the formats that are chosen."""

MAX_PADDED = 1.25
"""Above this share of channels with padding to channels, channels-last code is faster."""


LARGE_KERNEL = 512
"""Elements of a kernel from which on code for strided gradients is slower than a matrix product:
it loses 5 times at 32 x 32, and wins 1.5 to 2 times at 16 x 16."""
FEW_CHANNELS = 4
"""Up to that many it spends its time on the channels' padding: it loses 3 to 10 times."""


FILLS_EIGHTS = range(17, 25)
"""Channels that fill three registers of 8 elements, but two of 16 badly: code for the narrower
ones takes 0.65 to 0.9 times as long."""


DEPTHWISE = "jit_dw"
"""Code for a filter to each channel: brdgmm_dw, which oneDNN proposes first where channels are
last, takes 1.1 to 1.8 times as long, and code that pads each to 16 channels 10 to 20 times."""


def _named(proposed: PrimitiveDescriptor, name: str) -> PrimitiveDescriptor | None:
    """The code whose name begins so among what oneDNN proposes, if there is any."""
    try:
        while not proposed.implementation.startswith(name):
            proposed.next()
    except Unsupported:
        return None
    return proposed


def _fast(proposed: PrimitiveDescriptor, w: Tensor, group: int) -> PrimitiveDescriptor:
    """What oneDNN proposes, or the next that is not far slower than a matrix product would be.
    Raises Unsupported where nothing is left, as oneDNN's reference code (`ref`) is a thousand times
    slower: then NumPy's product of unfolded images is taken.

    w: the weights (O, C / group, *kernel) or their gradient.
    """
    outputs, inputs = w.shape[0] // group, w.shape[1]
    taps = math.prod(w.shape[2:])

    def is_slow(name: str) -> bool:
        if name.startswith("ref"):
            return True
        if "strided" in name:  # the gradient of an image that a window crosses in steps
            return taps > LARGE_KERNEL or min(inputs, outputs) <= FEW_CHANNELS
        # Groups of 1 x 1 filters are products of parts of images; blocks of channels cut across.
        in_blocks = inputs % 16 == outputs % 16 == 0 or inputs == outputs == 1
        return group > 1 and taps == 1 and not in_blocks and "gemm" not in name

    while is_slow(proposed.implementation):
        proposed.next()
    return proposed


def _geometry(x: Tensor, w: Tensor, y: Tensor, a: ops.ConvolutionWindow) -> list[Sequence[int]]:
    """Strides, dilations less one, and padding before and after, as oneDNN wants them."""
    behind = padding_behind(x, y, w.shape[2:], a.stride, a.pad, a.dilation)
    return [a.stride, [apart - 1 for apart in a.dilation], a.pad, behind]


def _weights(p: Preparation, w: Tensor, group: int) -> Operand:
    """Weights (O, I, *kernel); in groups, oneDNN wants them as (group, O / group, I, *kernel)."""
    if group == 1:
        return p.operand(w)
    in_groups = (group, w.shape[0] // group, *w.shape[1:])
    return p.operand(w, p.library.plain(in_groups))


def _ending(
    p: Preparation,
    dimensions: tuple[int, ...],
    a: ops.Convolution | ops.InnerProduct,
    after: bool = False,
) -> tuple[list[PostOperation], dict[int, Formatted]]:
    """What is applied to a result of these dimensions (ReLU, or another activation), and what the
    primitive is given for it. after: what lies in the output is added before.

    Raises Unsupported where the slopes of a PReLU do not lie along the second axis.
    """
    if a.relu is not None:
        return [relu_operation(a.relu)], {}
    if a.activation is None:
        return [], {}
    constants = a.activation.constants or {}
    if a.activation.formula == ELU:
        return [("eltwise", api.ELU, constants["alpha"], 0.0)], {}
    if a.activation.formula == RELU6:
        return relu6_operations(constants["n"], constants["negative_slope"]), {}
    _, slopes = a.activation.inputs
    if len(slopes.shape) != len(dimensions) or slopes.count not in (1, dimensions[1]):
        raise Unsupported("slopes along another axis")
    argument = (1 + after) * api.POST_OPERATION | api.WEIGHTS
    return [("prelu", 2 * (slopes.count > 1))], {argument: (slopes, p.library.plain(slopes.shape))}


def _image_form(p: Preparation, x: Operand) -> Descriptor:
    """The format of an image; one channel may be taken for the last, as its memory is the same."""
    if x.tensor.shape[1] == 1 and x.form == x.plain:
        return p.channels_last(x.tensor.shape)
    return x.form


def _output_form(p: Preparation, y: Operand) -> Descriptor:
    """The format to write y in: channels last where blocks of 16 channels waste too much."""
    channels = y.tensor.shape[1]
    if y.tensor.layout_undecided and -(-channels // 16) * 16 > MAX_PADDED * channels:
        return p.channels_last(y.tensor.shape)
    return y.form


def _channels_last(
    p: Preparation,
    describe: Callable[..., PrimitiveDescriptor],
    x: Operand,
    w: Operand,
    y: Operand,
    *,
    keeps: bool,
) -> list[list[Descriptor]]:
    """The formats with channels last, where these come first: without a backward pass, for which
    blocks are faster, code for AVX-512 takes 0.6 to 1 times as long with windows of several
    elements as in blocks, and as long with one. That code is called brgconv: where weights lie as
    another net wants them, it may not be there, and nothing is won.

    keeps: what lies in y is added.
    """
    if not (p.only_forward and p.library.has_avx512):
        return []
    below, above = (p.channels_last(each.tensor.shape) for each in (x, y))
    if keeps and y.form != above:
        return []
    forms = [below, w.form, above]
    if not w.tensor.layout_undecided:
        try:
            if not describe(*forms).implementation.startswith(("brg", "jit_dw")):
                return []
        except Unsupported:
            return []
    return [forms]


def convolution(p: Preparation, a: ops.Convolution) -> Step | None:
    """A sum in a format that its code cannot add in is left to NumPy, and so is an activation that
    only slow code could end with."""
    adds = a.addend is not None
    post_ops, given = _ending(p, a.y.shape, a, after=adds)
    image, weights, output = p.operand(a.x), _weights(p, a.w, a.group), p.operand(a.y)
    bias = None if a.b is None else p.operand(a.b)
    geometry = _geometry(a.x, a.w, a.y, a)

    narrow = p.only_forward and a.w.layout_undecided and a.w.shape[0] in FILLS_EIGHTS
    narrow = narrow and a.group == 1 and math.prod(a.w.shape[2:]) > 1
    depthwise = a.group > 1 and a.w.shape[1] == 1
    best = "jit:avx2" if narrow else DEPTHWISE if depthwise else ""

    def find(x: Descriptor, w: Descriptor, y: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe(
            "convolution_forward",
            api.FORWARD_TRAINING,
            api.CONVOLUTION_DIRECT,
            *(x, w, bias and bias.plain, y),
            *geometry,
            sum_scale=1.0 if adds else None,
            post_ops=post_ops,
        )

    def describe(*forms: Descriptor) -> PrimitiveDescriptor:
        proposed = _named(find(*forms), best) or find(*forms)
        return _fast(proposed, weights.tensor, a.group)

    forms = _image_form(p, image), weights.form, _output_form(p, output)
    preferred = _channels_last(p, describe, image, weights, output, keeps=adds)
    chosen = p.choose(describe, *forms, reorderable=_WEIGHTS, try_nhwc=True, preferred=preferred)
    if adds and chosen.wants(api.DST) != output.form:
        return None
    if a.activation is not None and not chosen.is_fast:
        return None
    reads = {api.SRC: image, api.WEIGHTS: weights, api.BIAS: bias}
    return p.step(chosen, reads, {api.DST: output}, given=given)


def convolution_backward_data(p: Preparation, a: ops.ConvolutionBackwardData) -> Step:
    """To few channels, as super-resolution ends with, a product and a sum of its columns take 0.2
    to 0.6 times as long as code that fills registers with channels."""
    above, weights, below = p.operand(a.dy), _weights(p, a.w, a.group), p.operand(a.dx)
    geometry = _geometry(a.dx, a.w, a.dy, a)

    def find(dx: Descriptor, w: Descriptor, dy: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe(
            "convolution_backward_data", api.CONVOLUTION_DIRECT, dx, w, dy, *geometry, None
        )

    def describe(*forms: Descriptor) -> PrimitiveDescriptor:
        proposed = find(*forms)
        if proposed.implementation.startswith("brg_fwd") and below.tensor.shape[1] % 16:
            proposed.next()  # faster where the channels do not fill the registers
        return _fast(proposed, weights.tensor, a.group)

    forms = below.form, weights.form, above.form
    chosen = None
    if a.group == 1 and a.w.shape[1] <= FEW_CHANNELS:
        any_weights = p.library.any(weights.plain.dimensions)
        chosen = _named(find(below.plain, any_weights, above.plain), "x64:gemm")
    chosen = chosen or p.choose(describe, *forms, reorderable=_WEIGHTS, try_nhwc=True)
    return p.step(chosen, {api.DIFF_DST: above, api.WEIGHTS: weights}, {api.DIFF_SRC: below})


def convolution_backward_filter(p: Preparation, a: ops.ConvolutionBackwardFilter) -> Step | None:
    """Without dw it is left to NumPy."""
    if a.dw is None:
        return None
    image, above = p.operand(a.x), p.operand(a.dy)
    weights = _weights(p, a.dw, a.group)
    bias = None if a.db is None else p.operand(a.db)
    geometry = _geometry(a.x, a.dw, a.dy, a)
    depthwise = a.group > 1 and a.dw.shape[1] == 1

    def describe(x: Descriptor, dw: Descriptor, dy: Descriptor) -> PrimitiveDescriptor:
        proposed = p.library.describe(
            "convolution_backward_weights",
            api.CONVOLUTION_DIRECT,
            *(x, dw, bias and bias.plain, dy),
            *geometry,
            None,
        )
        name = proposed.implementation
        # All but code for depthwise filters fills blocks with them: NumPy is twice as fast.
        if name.startswith("ref") or (depthwise and "dw" not in name):
            raise Unsupported(name)
        return proposed

    forms = _image_form(p, image), weights.form, above.form
    chosen = p.choose(describe, *forms, reorderable=_WEIGHTS, try_nhwc=True)
    reads = {api.SRC: image, api.DIFF_DST: above}
    return p.step(chosen, reads, {api.DIFF_WEIGHTS: weights, api.DIFF_BIAS: bias})


def _matrices(
    p: Preparation, x: Tensor, w: Tensor, y: Tensor, a: ops.Flattening
) -> tuple[Operand, Operand, Operand]:
    """x as (rows, K), w as (O, K), y as (rows, O).

    x is always flattened: oneDNN would take images as they are, but its code for them is much
    slower than to reorder x, which is small compared with the weights.
    """
    flattened = math.prod(x.shape[: a.axis]), math.prod(x.shape[a.axis :])
    rows = math.prod(y.shape[:-1]), y.shape[-1]
    # With `transpose` the elements of w are those of (K, O).
    weights = p.library.plain(w.shape[::-1], (1, w.shape[1])) if a.transpose else None
    return (
        p.operand(x, p.library.plain(flattened)),
        p.operand(w, weights),
        p.operand(y, p.library.plain(rows)),
    )


def _product(
    p: Preparation,
    x: Descriptor,
    w: Descriptor,
    b: Descriptor | None,
    y: Descriptor,
    post_ops: Sequence[PostOperation] = (),
) -> PrimitiveDescriptor:
    return p.library.describe(
        "inner_product_forward", api.FORWARD_TRAINING, x, w, b, y, post_ops=post_ops
    )


def inner_product(p: Preparation, a: ops.InnerProduct) -> Step | None:
    """An activation that only slow code could end with is left to NumPy."""
    images, weights, scores = _matrices(p, a.x, a.w, a.y, a)
    post_ops, given = _ending(p, scores.plain.dimensions, a)
    bias = None if a.b is None else p.operand(a.b)

    def describe(x: Descriptor, w: Descriptor, y: Descriptor) -> PrimitiveDescriptor:
        return _product(p, x, w, None if bias is None else bias.plain, y, post_ops)

    chosen = p.choose(describe, images.form, weights.form, scores.form)
    if a.activation is not None and not chosen.is_fast:
        return None
    reads = {api.SRC: images, api.WEIGHTS: weights, api.BIAS: bias}
    return p.step(chosen, reads, {api.DST: scores}, given=given)


def inner_product_backward_data(p: Preparation, a: ops.InnerProductBackwardData) -> Step:
    images, weights, scores = _matrices(p, a.dx, a.w, a.dy, a)

    def describe(dx: Descriptor, w: Descriptor, dy: Descriptor) -> PrimitiveDescriptor:
        x, v, y = (p.library.any(form.dimensions) for form in (dx, w, dy))
        hint = _product(p, x, v, None, y)
        return p.library.describe("inner_product_backward_data", dx, w, dy, hint)

    chosen = p.choose(describe, images.form, weights.form, scores.form)
    return p.step(chosen, {api.DIFF_DST: scores, api.WEIGHTS: weights}, {api.DIFF_SRC: images})


def inner_product_backward_filter(p: Preparation, a: ops.InnerProductBackwardFilter) -> Step | None:
    """Without dw it is left to NumPy."""
    if a.dw is None:
        return None
    images, weights, scores = _matrices(p, a.x, a.dw, a.dy, a)
    bias = None if a.db is None else p.operand(a.db)

    def describe(x: Descriptor, dw: Descriptor, dy: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe(
            "inner_product_backward_weights", x, dw, bias and bias.plain, dy, None
        )

    chosen = p.choose(describe, images.form, weights.form, scores.form)
    reads = {api.SRC: images, api.DIFF_DST: scores}
    return p.step(chosen, reads, {api.DIFF_WEIGHTS: weights, api.DIFF_BIAS: bias})
