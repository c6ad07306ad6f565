"""osucaffe: a Caffe that trains, from one CPU core to many nodes of GPUs.

`import osucaffe as oc` loads nothing else: each name below is imported when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers read it: importing typing would take longer than the rest
if TYPE_CHECKING:
    from . import layers as layers
    from .api.blobs import Blob, Layer, Parameter
    from .api.export import export
    from .api.model import Model, Prediction, load
    from .api.net import Net
    from .api.run import Run, fit, predict, train
    from .api.solver import Solver
    from .errors import UserError
    from .solvers.observer import Observer

__version__ = "0.1.0"

_PLACES = {
    **dict.fromkeys(("Model", "Prediction", "load"), "api.model"),
    **dict.fromkeys(("Run", "fit", "predict", "train"), "api.run"),
    "Net": "api.net",
    **dict.fromkeys(("Blob", "Layer", "Parameter"), "api.blobs"),
    "Observer": "solvers.observer",
    "Solver": "api.solver",
    "UserError": "errors",
    "export": "api.export",
    "layers": "layers",
}
"""The modules of the names that are public."""

__all__ = [
    "Blob",
    "Layer",
    "Model",
    "Net",
    "Observer",
    "Parameter",
    "Prediction",
    "Run",
    "Solver",
    "UserError",
    "__version__",
    "export",
    "fit",
    "layers",
    "load",
    "predict",
    "train",
]


def __getattr__(name: str) -> object:
    """A public name, when it is first asked for."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f".{_PLACES[name]}", __name__)
    value = globals()[name] = getattr(module, name, module)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
