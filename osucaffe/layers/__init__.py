"""Caffe's layers. `entry_points.txt` has the types, and where each is: a layer's module is
imported when a net first names its type. `python -m tests.project.entry_points` writes the list.
"""

from .base import Layer, register

__all__ = ["Layer", "register"]
