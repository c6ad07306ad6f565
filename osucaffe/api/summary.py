"""The summary of a net: its layers as the rows of a table, and the sums of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..backends.tensor import Tensor
from ..graph.flops import by_layer, flops
from ..net import Net
from .tables import html_table, scaled, table

COLUMNS = "<<<>>>", ("layer", "type", "output", "parameters", "forward", "backward")
"""The sides and the headings of a table of rows."""


@dataclass(frozen=True)
class Row:
    """A layer: its type, the shapes of its tops, its parameters, operations of a batch."""

    name: str
    type: str
    shapes: list[tuple[int, ...]]
    parameters: int
    forward: int
    backward: int

    @property
    def shape(self) -> str:
        """That of the first top."""
        return "x".join(map(str, self.shapes[0])) if self.shapes else ""

    @property
    def cells(self) -> tuple[str, ...]:
        """What a table shows of it."""
        operations = (self.forward, self.backward)
        return (
            *(self.name, self.type, self.shape, f"{self.parameters:,}" if self.parameters else ""),
            *(scaled(count, "FLOP") if count else "" for count in operations),
        )


def describe(net: Net) -> list[Row]:
    """A row for each layer, except splits. Shared parameters count at their first layer."""
    count = len(net.layers)
    forward, backward = (
        [sum(map(flops, calls)) for calls in by_layer(program, count)] for program in net.programs
    )
    counted: set[Tensor] = set()
    rows = []
    for index, node in enumerate(net.nodes):
        if node.layer.type == "Split":
            continue
        own = {blob.data.owner for blob in node.layer.parameters} - counted
        counted |= own
        rows.append(
            Row(
                node.layer.label,
                node.layer.type,
                [blob.shape for blob in node.top],
                sum(tensor.count for tensor in own),
                forward[index],
                backward[index],
            )
        )
    return rows


def totals(net: Net, rows: Sequence[Row]) -> list[str]:
    """What the layers have together, and the operations of a batch, a line each."""
    parameters = sum(row.parameters for row in rows)
    learn = sum(row.parameters > 0 for row in rows)
    forward, backward = (sum(getattr(row, way) for row in rows) for way in ("forward", "backward"))
    name = f'Net "{net.name}"' if net.name else "The net"
    return [
        f"{name}, {net.phase}: {len(rows)} layers, {parameters:,} parameters in {learn} of them",
        f"Operations of a batch: {scaled(forward, 'FLOP')} forward"
        + (f", {scaled(backward, 'FLOP')} backward" if backward else ""),
    ]


def text(net: Net) -> str:
    """The sums and the table."""
    rows, (sides, head) = describe(net), COLUMNS
    return "\n".join([*totals(net, rows), "", *table(sides, head, *(row.cells for row in rows))])


def html(net: Net) -> str:
    """The same for a notebook."""
    rows, (sides, head) = describe(net), COLUMNS
    return html_table(
        sides, head, *(row.cells for row in rows), caption=". ".join(totals(net, rows))
    )
