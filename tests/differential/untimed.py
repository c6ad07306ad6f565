"""Owns a tuner that takes any candidate which works, chosen by the call alone.

On a user's machine any of them may be the fastest: so random nets try all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from osucaffe.backends.cuda.autotune.trial import Trial
from osucaffe.backends.cuda.autotune.tuner import Tuner, signature
from osucaffe.backends.cuda.call import Candidate, CudaCall, Pending, Provider
from osucaffe.errors import UserError
from tests.backends.cuda.convolution.layers import OF_ANY_SIZE


def try_all() -> None:
    """Let kernels for large convolutions be candidates for small ones, too."""
    for module, name, value in OF_ANY_SIZE:
        setattr(module, name, value)


class UntimedTuner(Tuner):
    """The same choice for the same call, in every process."""

    def begin(self, call: CudaCall, providers: Sequence[Provider]) -> Pending:
        return Pending(self.fastest, call, providers)

    def fastest(self, call: CudaCall, providers: Sequence[Provider]) -> Candidate:
        random = Random(signature(call))
        asked = [provider for provider in providers if provider.worthwhile(math.inf)]
        with Trial(call) as trial:
            for provider in random.sample(asked, len(asked)):
                candidates = list(provider.candidates())
                for candidate in random.sample(candidates, len(candidates)):
                    try:
                        trial.step(candidate)()
                        call.backend.synchronize()
                    except (RuntimeError, UserError):  # it does not offer this one to users either
                        continue
                    provider.chosen(candidate.name)
                    call.implementation = f"{provider.name}: {candidate.name}"
                    return candidate
        raise UserError(f'layer "{call.layer}": nothing computes its {call.name}')
