"""Random sessions of pycaffe see what nets show that compute everything each time."""

from __future__ import annotations

import pytest

import osucaffe.pycaffe as caffe
from osucaffe.pycaffe import forward_only
from tests.pycaffe.nets import Device

from . import sessions


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    caffe.set_mode_cpu()
    for name in "seed", "given":
        monkeypatch.setattr(sessions.settings._Settings, name, None)


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_sessions(seed: int) -> None:
    count, failures = sessions.run(seconds=600, seed=seed, most=10)
    assert count == 10
    assert not failures, failures[0]


def test_sessions_with_copies() -> None:
    sessions.settings.use(Device())
    _, failures = sessions.run(seconds=600, seed=60, most=10)
    assert not failures, failures[0]


def test_a_copy_that_is_written_behind_a_late_look() -> None:
    sessions.settings.use(Device())
    lines = [
        "net.forward()",
        'w = net.params["ip"][0].data',
        "see(net.blobs['conv'].data)",
        "w[...] *= 2",
        "see(net.forward()['ip'])",
    ]
    assert not sessions.difference(sessions.CHAIN, lines)


def test_a_copy_from_before_sharing_is_not_written_into_what_is_shared() -> None:
    sessions.settings.use(Device())
    lines = [
        "net.forward()",
        'before, w = other.params["ip"][0].data.copy(), net.params["ip"][0].data',
        "net.share_with(other); net.forward(); other.forward()",
        'see(other.params["ip"][0].data - before)',
    ]
    (change,) = sessions.seen(sessions.CHAIN, lines, fast=True)
    assert not change.any()


def test_a_fault_is_found_and_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_only, "_different", lambda pairs: set())
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
