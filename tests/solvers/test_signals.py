"""What SIGINT and SIGHUP do, sent to this very process."""

from __future__ import annotations

import os
import signal

import pytest

from osucaffe.solvers.signals import NONE, SNAPSHOT, STOP, Signals


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def test_signals_become_requests_once() -> None:
    with Signals() as signals:
        assert signals.request() == NONE
        send(signal.SIGHUP)
        send(signal.SIGINT)
        assert [signals.request() for _ in range(3)] == [STOP, SNAPSHOT, NONE]


def test_effects_can_be_chosen() -> None:
    with Signals(sigint=NONE, sighup=STOP) as signals:
        send(signal.SIGINT)
        assert signals.request() == NONE
        send(signal.SIGHUP)
        assert signals.request() == STOP
    with pytest.raises(ValueError, match="halt"):
        Signals(sigint="halt")


def test_a_second_sigint_ends_at_once() -> None:
    with Signals() as signals:
        send(signal.SIGINT)
        assert signals.request() == STOP
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    with Signals(sigint=SNAPSHOT) as signals:
        for _ in range(2):
            send(signal.SIGINT)
            assert signals.request() == SNAPSHOT
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_the_handlers_from_before_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)
    with Signals():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)) == before
