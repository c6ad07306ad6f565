"""The update: a pass over the arena, whole or in parts."""

from __future__ import annotations

import itertools

import pytest

from osucaffe.solvers import Solver

from ..runs import TYPES, assert_same, solver


def with_gradients(settings: str) -> Solver:
    """A solver behind a first forward and backward pass."""
    run = solver(settings)
    run.net.forward()
    run.net.backward()
    run.optimizer.set_rate(0.1, 0)
    run.optimizer.take_rate()
    return run


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "LAMB"])
def test_parts_make_the_update_of_the_whole(kind: str) -> None:
    """Cut anywhere, in any order; a part may be empty."""
    whole, parts = (
        with_gradients(f'type: "{kind}" {TYPES[kind]} weight_decay: 0.01') for _ in range(2)
    )
    cuts = [0, 7, 7, 100, len(parts.net.arena)]
    steps = [parts.optimizer.part(*each) for each in itertools.pairwise(cuts)]
    whole.optimizer.step(0.1, 0)
    for step in reversed(steps):
        step()
    assert_same(parts, whole)


def test_a_part_leaves_the_rest_alone() -> None:
    run, none = with_gradients("momentum: 0.9"), with_gradients("momentum: 0.9")
    run.optimizer.part(7, 7)()
    assert_same(run, none)
    run.optimizer.part(7, 8)()
    with pytest.raises(AssertionError, match="1 / "):
        assert_same(run, none)


def test_sums_over_all_gradients_cannot_be_cut() -> None:
    assert solver("").optimizer.separable
    assert not solver("clip_gradients: 1").optimizer.separable
    assert not solver(f'type: "LAMB" {TYPES["LAMB"]}').optimizer.separable
    assert not solver("", loss_scale=8).optimizer.separable
