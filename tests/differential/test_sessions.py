"""Random sessions of pycaffe see what nets show that compute everything each time."""

from __future__ import annotations

import pytest

import osucaffe.pycaffe as caffe
from osucaffe.pycaffe import forward_only

from . import sessions


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    caffe.set_mode_cpu()
    monkeypatch.setattr(sessions.settings._Settings, "seed", None)


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_sessions(seed: int) -> None:
    count, failures = sessions.run(seconds=600, seed=seed, most=10)
    assert count == 10
    assert not failures, failures[0]


def test_a_fault_is_found_and_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_only, "_same", lambda one, other: True)
    lines = [
        "fill(other, 3)",
        "other.forward()",
        'w = net.params["ip"][0].data',
        "net.forward()",
        "w[...] *= 2",
        "see(net.forward()['ip'])",
        "see(other.blobs['conv'].data)",
    ]
    assert sessions.difference(sessions.CHAIN, lines)
    short = sessions.minimise(sessions.CHAIN, lines)
    assert short == lines[2:6]
    compile(sessions.script(sessions.CHAIN, short), "script", "exec")
