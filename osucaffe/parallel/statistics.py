"""Owns the statistics of batches across ranks: each measures its own, then they are averaged.

Gradients do not keep them in step, since they are measured, not learned.
"""

from __future__ import annotations

import numpy as np

from ..comm.job.job import Job
from ..net import Net


def average_statistics(net: Net, job: Job) -> None:
    """Give every rank the mean of all ranks' statistics. All ranks call it together.

    Where rank 0 alone updates the weights (blocking or overlapped propagation), its statistics have
    replaced the others' with each update, and stay. The spread of the ranks' means is no part of
    the variance: that is the mean of their variances.
    """
    blobs = [layer.parameters[i] for layer in net.layers for i in layer.statistics]
    if not blobs:
        return
    own = [net.backend.read(blob.data).astype(np.float64) for blob in blobs]
    found = job.gather(own)
    for blob, values in zip(blobs, zip(*found, strict=True), strict=True):
        net.backend.write(blob.data, np.mean(values, axis=0).astype(np.float32))
