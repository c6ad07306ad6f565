"""The same nets in PyTorch and JAX."""
