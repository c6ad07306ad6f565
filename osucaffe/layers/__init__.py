"""Owns the layer types: one file a family. Importing the package registers them all."""

from . import (  # noqa: F401
    arrange,
    channelwise,
    combine,
    convolution,
    cross_entropy,
    data,
    dropout,
    elementwise,
    embed,
    inner_product,
    losses,
    normalization,
    output,
    pooling,
    python,
    recurrent,
    shape,
    softmax,
)
