"""osucaffe: a Caffe that trains, from one CPU core to many nodes of GPUs."""

__version__ = "0.1.0"
