"""Prefetching: threads and processes that prepare batches ahead of the net, and their
memory."""
