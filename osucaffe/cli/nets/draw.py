"""`osucaffe draw`: a picture of a net."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...errors import UserError
from ...files import write_bytes
from ...graph.prototxt.filter import filter_layers, net_state
from ...proto import LayerParameter, read_net
from ...pycaffe import draw
from .options import Draw

_LONGER = 1.5
"""A row may be this much longer than requested, if that saves a short one."""


def run(options: Draw) -> None:
    """Draw the net, its phases separately if they differ, and a deep one in rows.

    A row is drawn as a separate net: blobs from earlier rows are repeated there.
    Graphviz places unconnected nets below each other (LR) or side by side (TB).
    """
    phases = ("TRAIN", "TEST") if options.phase == "ALL" else (options.phase,)
    net = read_net(options.model)
    if not (suffix := Path(options.picture).suffix[1:]):
        raise UserError(f"{options.picture}: give the picture a suffix: .png, .svg, .pdf or .dot")
    graph = draw.new_graph(net.name, options.rankdir)
    nets = {phase: filter_layers(net, net_state(net, phase)) for phase in phases}
    if len(nets) > 1 and len({str(list(net.layer)) for net in nets.values()}) == 1:
        nets = {"": net}
    for phase, filtered in reversed(nets.items()):  # Graphviz has the last one on top
        part = graph
        if len(nets) > 1:
            import pydot

            part = pydot.Cluster(phase, label=phase, fontname="Helvetica", color="#999999")
            graph.add_subgraph(part)
        before: set[str] = set()
        for index, row in enumerate(rows(filtered.layer, options.wrap)):
            draw.add_layers(
                *(part, row, options.rankdir), display_lrm=options.display_lrm,
                prefix=f"{phase} row{index} ", known=before,
            )  # fmt: skip
            before |= {blob for layer in row for blob in layer.top}
    write_bytes(options.picture, draw.render(graph, suffix))
    print(f"wrote {options.picture}")


def rows(layers: Sequence[LayerParameter], length: int) -> list[list[LayerParameter]]:
    """Layers divided into rows of a depth of at most about `length`."""
    depth: dict[str, int] = {}
    depths = []
    for layer in layers:
        level = 1 + max((depth.get(blob, 0) for blob in layer.bottom), default=0)
        depths.append(level)
        depth |= dict.fromkeys(layer.top, level)
    most = max(depths, default=0)
    if not length or most <= _LONGER * length:
        return [list(layers)]
    count = -(-most // length)
    per_row = -(-most // count)  # rows of like lengths
    result: list[list[LayerParameter]] = [[] for _ in range(count)]
    for layer, level in zip(layers, depths, strict=True):
        result[(level - 1) // per_row].append(layer)
    return [row for row in result if row]
