"""The layers of DetectNet, the detector of NVIDIA DIGITS.

From NVIDIA/caffe: DetectNetTransformation, and the Python modules caffe.layers.detectnet.clustering
and .mean_ap as classes of ours.

Used by: DetectNet, as DIGITS trains it.
"""
