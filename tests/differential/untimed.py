"""A tuner that takes any candidate which works, chosen by the call alone.

On a user's machine any of them may be the fastest: so random nets try all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from osucaffe.backends.cuda.autotune.trial import Trial
from osucaffe.backends.cuda.autotune.tuner import Tuner, signature
from osucaffe.backends.cuda.call import Candidate, Context, Pending, Provider
from osucaffe.errors import UserError
from tests.backends.cuda.convolution.layers import OF_ANY_SIZE


def try_all() -> None:
    """Let kernels for large convolutions be candidates for small ones, too."""
    for module, name, value in OF_ANY_SIZE:
        setattr(module, name, value)


class UntimedTuner(Tuner):
    """The same choice for the same call, in every process."""

    def begin(self, ctx: Context, providers: Sequence[Provider]) -> Pending:
        return Pending(self.fastest, ctx, providers)

    def fastest(self, ctx: Context, providers: Sequence[Provider]) -> Candidate:
        random = Random(signature(ctx))
        asked = [provider for provider in providers if provider.worthwhile(math.inf)]
        with Trial(ctx) as trial:
            for provider in random.sample(asked, len(asked)):
                candidates = list(provider.candidates())
                for candidate in random.sample(candidates, len(candidates)):
                    try:
                        trial.step(candidate)()
                        ctx.backend.synchronize()
                    except (RuntimeError, UserError):  # it does not offer this one to users either
                        continue
                    provider.chosen(candidate.name)
                    ctx.call.implementation = f"{provider.name}: {candidate.name}"
                    return candidate
        raise UserError(f'layer "{ctx.call.layer}": nothing computes its {ctx.call.name}')
