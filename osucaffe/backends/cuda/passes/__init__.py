"""Passes over tensors, as steps: what primitives are put together from, and conversions."""
