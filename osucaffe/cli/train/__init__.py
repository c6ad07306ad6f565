"""`osucaffe train`: the options of a training run, its checks, its live display,
TensorBoard."""
