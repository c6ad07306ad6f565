"""A compression of one's own: gradients in float16 that lose nothing, as what rounding takes is
added to the next ones.

osucaffe train --solver S --ranks 4 --compression halves:Halves
"""

from typing import Any

import numpy as np

from osucaffe.comm.algorithms import Operation
from osucaffe.parallel.buckets import Bucket
from osucaffe.parallel.hook import ErrorFeedback


class Halves(ErrorFeedback):
    """Rounds to float16; the sums are float32."""

    touched = 9.0, 0.0

    @classmethod
    def messages(cls, net: Any, bucket: Bucket, ranks: int) -> list[tuple[Operation, int]]:
        """For `osucaffe predict`: what travels of a bucket."""
        return [(Operation.ALL_REDUCE, bucket.stop - bucket.start)]

    def compress(self, bucket: Bucket, values: Any, total: Any) -> None:
        """The rest of each value stays."""
        total[:] = values.astype(np.float16)
        values -= total
        self.sum(total)
