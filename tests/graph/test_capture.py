"""How prepared calls run: layer by layer, or as one step with others between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from osucaffe.backends.backend import Prepared
from osucaffe.backends.primitives.movement import Host
from osucaffe.backends.primitives.recording import Primitive
from osucaffe.backends.tensor import Run, sequence
from osucaffe.graph.capture import as_one, by_layer

LAYERS = ["data", "ip", "loss"]
"""By position. In the calls all have one name, which tells nobody anything."""


class Work(Primitive, abstract=True):
    """A call that does anything."""


class Replaying:
    """A backend that notes which steps it replays as one."""

    def __init__(self, ran: list[str]) -> None:
        self.ran = ran

    def schedule(self, calls: Sequence[Prepared]) -> list[Run]:
        return [step for _, step in calls]

    def capture(self, steps: Sequence[Run]) -> Run:
        return sequence([self.note("("), *steps, self.note(")")])

    def note(self, name: str) -> Run:
        return partial(self.ran.append, name)

    def call(self, layer: str, name: str, **settings: bool) -> Prepared:
        call = Host([], [], print, **settings) if name == "host" else Work()
        call.layer, call.position = "same", LAYERS.index(layer) if layer else -1
        return call, self.note(f"{layer} {name}")


def test_steps_of_layers() -> None:
    ran: list[str] = []
    backend = Replaying(ran)
    calls = [backend.call(layer, "a") for layer in ["ip", "data", "", "ip"]]
    steps = by_layer(calls, len(LAYERS))
    assert [len(each) for each in steps] == [1, 2, 0, 1]
    steps[1][1]()
    assert ran == ["ip a"]


@pytest.mark.parametrize(
    ("enqueues", "host", "expected"),
    [
        (True, False, "(|weights|ip f|last weights|rate|loss b|ip b|sums|then|)"),
        (False, False, "weights|(|ip f|)|last weights|rate|(|loss b|ip b|)|sums|then"),
        (True, True, "weights|ip f|loss host|last weights|rate|loss b|ip b|sums|then"),
    ],
)
def test_all_as_one(enqueues: bool, host: bool, expected: str) -> None:
    """What brings input runs first; marks that wait cut what is replayed, a host function that may
    do anything rules it out."""
    ran: list[str] = []
    backend = Replaying(ran)
    forward = [backend.call("data", "host", feed=True), backend.call("ip", "f")]
    if host:
        forward.append(backend.call("loss", "host", feed=False))
    step = as_one(
        backend,
        backend.note("begin"),
        forward,
        [backend.call("loss", "b"), backend.call("ip", "b")],
        len(LAYERS),
        before={1: backend.note("weights"), 3: backend.note("last weights")},
        after={1: backend.note("sums")},
        concurrent=[backend.note("rate")],
        last=[backend.note("then")],
        enqueues=enqueues,
    )
    step()
    assert "|".join(ran) == f"begin|data host|{expected}"
