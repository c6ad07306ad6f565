"""Owns reading ahead of the net: threads and processes that prepare batches, and memory for
them."""
