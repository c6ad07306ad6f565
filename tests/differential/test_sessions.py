"""Random sessions of pycaffe see what nets show that compute everything each time."""

from __future__ import annotations

import pytest

import osucaffe.pycaffe as caffe
from osucaffe.pycaffe import forward_only
from tests.pycaffe.nets import Device

from . import sessions
from .search import Case, check_cases, minimize


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    caffe.set_mode_cpu()
    for name in "seed", "given":
        monkeypatch.setattr(sessions.settings._Settings, name, None)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_sessions(first: int) -> None:
    check_cases(sessions.KIND, 1, range(first, first + 10))


def test_sessions_with_copies() -> None:
    sessions.settings.use(Device())
    check_cases(sessions.KIND, 1, range(60, 70))


def case(*lines: str) -> Case:
    """A script about the first net."""
    return {f"{place:03}": line for place, line in enumerate(lines)}


def test_a_copy_that_is_written_behind_a_late_look() -> None:
    sessions.settings.use(Device())
    sessions.check(
        case(
            "net.forward()",
            'w = net.params["ip"][0].data',
            "see(net.blobs['conv'].data)",
            "w[...] *= 2",
            "see(net.forward()['ip'])",
        )
    )


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
    monkeypatch.setattr(forward_only, "_different", lambda now, before: set())
    whole = case(
        "fill(other, 3)",
        "other.forward()",
        'w = net.params["ip"][0].data',
        "net.forward()",
        "w[...] *= 2",
        "see(net.forward()['ip'])",
        "see(other.blobs['conv'].data)",
    )
    short = minimize(sessions.KIND, whole)
    assert short == {place: whole[place] for place in ("002", "003", "004", "005")}
    compile(sessions.show(short), "script", "exec")
