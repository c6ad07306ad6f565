"""Owns the primitives on the GPU, a file a family, as backends/primitives declares them."""
