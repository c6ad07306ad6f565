"""Layers of forks that brought only one or two.

From forks for mobile nets: DepthwiseConvolution and ConvolutionDepthwise, other names of grouped
convolutions. From junhyukoh/caffe-lstm: Lstm. From soeaver/caffe-model: SeLu, SeLuDropout. From
yjxiong/caffe (TSN): Gather. From lltcggie/caffe (waifu2x): CropCenter.

Used by: MobileNet and ShuffleNet; nets over sequences; self-normalizing nets; waifu2x.
"""
