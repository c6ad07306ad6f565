"""Stands for pycaffe's interface, which takes this module's place when it is imported."""

import importlib

importlib.import_module("osucaffe.pycaffe").install()
