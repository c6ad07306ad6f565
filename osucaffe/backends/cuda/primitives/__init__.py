"""The primitives on the GPU, one file per family, as backends/primitives declares them."""
