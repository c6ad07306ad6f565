"""Training: nets, kernels, starts and whole commands beside PyTorch and JAX."""
