"""Owns the fusion of adjacent calls that the libraries can compute as one."""

from __future__ import annotations

from ..backends.tensor import Call

_WITH_RELU = {"convolution", "inner_product"}


def fuse_relu(calls: list[Call]) -> list[Call]:
    """Let a convolution or inner product apply the in-place ReLU that follows it."""
    fused: list[Call] = []
    for call in calls:
        before = fused[-1] if fused else None
        if (
            call.name == "relu"
            and before is not None
            and before.name in _WITH_RELU
            and before.settings["relu"] is None
            and call.reads["x"] is call.writes["y"] is before.writes["y"]
        ):
            before.settings["relu"] = call.settings["slope"]
        else:
            fused.append(call)
    return fused
