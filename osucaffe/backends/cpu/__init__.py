"""The CPU backend: NumPy for everything, oneDNN where it is faster."""

from .backend import Cpu

__all__ = ["Cpu"]
