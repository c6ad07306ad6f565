"""The loading of model files into nets: what is said of layers that match, and of others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from .backends.tensor import Tensor
from .errors import UserError, listed
from .layers.base import Layer
from .net import Net
from .proto import AnyWeights

log = logging.getLogger("osucaffe")

Model = tuple[str | Path, AnyWeights]
"""A model file's name, and what it holds."""

NOT_STRICT = "give files that match, or leave out --strict"
"""The remedy where they must, and do not."""


def load_weights(nets: Sequence[Net], models: list[Model]) -> str:
    """Copy the weights of the layers with the same names from one file after the other, and let go
    of each. The log says for each how much that was; returns what did not match: layers that no
    file has, and those of a file that no net has ("" if all did).

    nets: a net, and perhaps others that share its parameters and have more of their own.
    UserError where nothing of a file matches, and where shapes differ.
    """
    own = [layer for index, net in enumerate(nets) for layer in _own(net, nets[:index])]
    left = list(own)
    mismatches = []
    while models:
        file, weights = models.pop(0)
        matches = [net.load(weights, file) for net in nets]
        found = {layer for match in matches for layer in match.loaded}
        missing = [layer.label for layer in own if layer not in found]
        unused = [name for name in matches[0].unused if all(name in m.unused for m in matches)]
        if own and len(missing) == len(own):
            raise UserError(
                f"{file}: nothing to load: it has {listed(unused) or 'no weights'}, but the layers "
                f"of this net are {listed(missing)}; give the model of this net, or nets whose "
                "layers have the same names"
            )
        said = f"{file}: {len(own) - len(missing)} of {len(own)} layers with weights loaded"
        said += f"; not in the file: {listed(missing)}" if missing else ""
        said += f"; unused: {listed(unused)}" if unused else ""
        log.log(logging.WARNING if missing or unused else logging.INFO, "%s", said)
        left = [layer for layer in left if layer not in found]
        mismatches += [f"unused of {file}: {listed(unused)}"] if unused else []
    if left:
        mismatches.insert(0, f"not loaded: {listed([layer.label for layer in left])}")
    return "; ".join(mismatches)


def _own(net: Net, before: Sequence[Net]) -> list[Layer]:
    """The layers with parameters, but for those that use only those of the nets before."""
    known = {tensor for each in before for layer in each.layers for tensor in _tensors(layer)}
    return [layer for layer in net.layers if _tensors(layer) - known]


def _tensors(layer: Layer) -> set[Tensor]:
    return {blob.data.owner for blob in layer.parameters}
