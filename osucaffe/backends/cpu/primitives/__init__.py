"""The primitives by NumPy, one file per family, as backends/primitives declares them."""
