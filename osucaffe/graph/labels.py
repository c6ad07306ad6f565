"""Owns the tracking of labels: tells the layers that read labels which classes the net accepts."""

from __future__ import annotations

from collections.abc import Sequence

from ..blob import Blob
from ..labels import Classes, Labels
from .gradients import Node


def limit_labels(nodes: Sequence[Node]) -> dict[str, Labels]:
    """Tell every layer without bottoms which labels the layers take that its tops reach as they
    are: directly, or through layers that share their bottom's memory, such as Split. Returns the
    same by the names of these tops."""
    origins: dict[Blob, tuple[Node, int]] = {}
    found: dict[tuple[Node, int], list[Classes]] = {}
    for node in nodes:
        if not node.bottom:
            for top, blob in enumerate(node.top):
                origins[blob] = node, top
                found[node, top] = []
        elif "data" in node.layer.alias and node.bottom[0] in origins:
            origins |= dict.fromkeys(node.top, origins[node.bottom[0]])
        for bottom, classes in node.layer.label_bottoms.items():
            if node.bottom[bottom] in origins:
                found[origins[node.bottom[bottom]]].append(classes)
    limits: dict[str, Labels] = {}
    for (node, top), readers in found.items():
        labels = limits[node.top[top].name] = Labels(readers)
        node.layer.limit_labels(top, labels)
    return limits
