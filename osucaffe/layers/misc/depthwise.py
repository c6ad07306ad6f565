"""Owns the names under which forks have convolution of each channel by filters of its own."""

from __future__ import annotations

from ..base import Shapes, register
from ..core.convolution import Convolution


@register("DepthwiseConvolution")
class DepthwiseConvolution(Convolution):
    """Convolution; the name promises as many groups as channels, and `group` says them."""


@register("ConvolutionDepthwise")
class ConvolutionDepthwise(Convolution):
    """One filter for each channel: num_output and group are not read."""

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.convolution_param
        axis = self.axis(param.axis, len(bottom[0]), "convolution_param.axis")
        param.num_output = param.group = bottom[0][axis]
        return super().setup(bottom)
