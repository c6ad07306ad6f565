"""Caffe's own layers, one file a family, and the few that came to Caffe's families since
(GELU, LayerNorm, PixelShuffle)."""
