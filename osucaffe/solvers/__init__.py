"""Training: update rules, learning-rate policies, the loop, tests, snapshots and resuming."""

from .observer import Display, Observer, Output, Snapshot, TestResult
from .signals import Signals
from .solver import Solver

__all__ = ["Display", "Observer", "Output", "Signals", "Snapshot", "Solver", "TestResult"]
