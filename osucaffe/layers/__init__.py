"""Owns the layer types: Caffe's own, and those of its forks, a folder for each family of forks.

Importing the package imports all modules of its folders, which registers their layers: a folder
that is taken away takes its own layers with it, and nothing else.
"""

import importlib
import pkgutil

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
