"""NVIDIA Caffe's precision fields: they are read, and the log says where a run differs."""

from __future__ import annotations

import logging

from ...proto import NetParameter

log = logging.getLogger("osucaffe")

FIELDS = ("forward_type", "backward_type", "forward_math", "backward_math")
NET_FIELDS = (
    *(f"default_{field}" for field in FIELDS),
    "global_grad_scale",
    "global_grad_scale_adaptive",
)


def warn_of_precision(param: NetParameter) -> None:
    """Warn once when a net asks for a precision: here it is a setting of the run, not the net."""
    asked = {field for field in NET_FIELDS if param.HasField(field)}
    asked |= {field for layer in param.layer for field in FIELDS if layer.HasField(field)}
    if asked:
        log.warning(
            "Net %s sets %s (NVIDIA Caffe): ignored: --precision holds for all layers",
            param.name,
            ", ".join(sorted(asked)),
        )
